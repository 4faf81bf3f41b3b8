/** Figures as people read them. Times are UTC, as in Airflow's log. */

const NONE = "–";

export function whole(value: number | null | undefined): string {
  return value === null || value === undefined ? NONE : Math.round(value).toLocaleString("en-US");
}

/** Four significant digits, as the report has them. */
export function figure(value: number | null | undefined): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return NONE;
  return Number(value.toPrecision(4)).toLocaleString("en-US", { maximumSignificantDigits: 4 });
}

export function bytes(value: number | null | undefined, suffix = ""): string {
  if (value === null || value === undefined) return NONE;
  const units = ["B", "kB", "MB", "GB", "TB"];
  let scaled = value;
  let unit = 0;
  while (Math.abs(scaled) >= 1000 && unit < units.length - 1) {
    scaled /= 1000;
    unit += 1;
  }
  return `${unit ? scaled.toPrecision(3) : Math.round(scaled)} ${units[unit] ?? ""}${suffix}`;
}

/** ``12.3 s``, ``4:05``, ``1:02:03``. */
export function duration(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return NONE;
  if (Math.abs(seconds) < 60) return `${seconds.toFixed(1)} s`;
  const total = Math.round(seconds);
  const [hours, minutes] = [Math.floor(total / 3600), Math.floor(total / 60) % 60];
  const rest = String(total % 60).padStart(2, "0");
  return hours ? `${hours}:${String(minutes).padStart(2, "0")}:${rest}` : `${minutes}:${rest}`;
}

/** ``2026-11-22 10:00:00``, in UTC. */
export function moment(time: string | null): string {
  if (time === null) return NONE;
  const at = new Date(time);
  return Number.isNaN(at.getTime()) ? NONE : at.toISOString().slice(0, 19).replace("T", " ");
}

export function clock(seconds: number): string {
  const at = new Date(seconds * 1000);
  return Number.isNaN(at.getTime()) ? NONE : at.toISOString().slice(11, 19);
}

/** ``11-22``. */
export function day(seconds: number): string {
  const at = new Date(seconds * 1000);
  return Number.isNaN(at.getTime()) ? NONE : at.toISOString().slice(5, 10);
}

export function words(name: string): string {
  return name.replaceAll("_", " ");
}

/** Only addresses that a browser may follow: what comes in a document may be anything. */
export function safeLink(address: string | null): string | null {
  if (address === null) return null;
  try {
    const url = new URL(address, location.href);
    return url.protocol === "https:" || url.protocol === "http:" ? url.href : null;
  } catch {
    return null;
  }
}
