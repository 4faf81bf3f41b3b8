/** How a curve is drawn: on which scale, and how its noise is averaged. Pure. */

/** Ratio of largest to smallest from which on a logarithmic scale is used. */
const LOG_FROM = 20;
/** Points on each side of the average; fewer at its ends. */
const NEIGHBORS = 5;

export function isLogarithmic(values: (number | null)[]): boolean {
  let [low, high] = [Infinity, 0];
  for (const value of values) {
    if (value === null) continue;
    if (value <= 0) return false;
    [low, high] = [Math.min(low, value), Math.max(high, value)];
  }
  return high / low >= LOG_FROM;
}

/** A centered moving average, which does not lag; of the logarithms, if these are drawn. Gaps stay gaps. */
export function averaged(values: (number | null)[], logarithmic: boolean): (number | null)[] {
  const [into, back] = logarithmic ? [Math.log, Math.exp] : [(x: number) => x, (x: number) => x];
  return values.map((value, at) => {
    if (value === null) return null;
    const reach = Math.min(NEIGHBORS, at, values.length - 1 - at);
    const near = values.slice(at - reach, at + reach + 1).filter((each) => each !== null);
    return back(near.reduce((sum, each) => sum + into(each), 0) / near.length);
  });
}
