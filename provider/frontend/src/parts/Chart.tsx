import { useEffect, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { averaged, isLogarithmic } from "../model/curve";
import { clock, day, figure, whole } from "../model/format";
import { type Label, labelsOf, type Mark } from "../model/marks";
import { isPrinting } from "../theme";

export interface Curve {
  label: string;
  values: (number | null)[];
  /** Holds its value until the next point. */
  stepped?: boolean;
  dashed?: boolean;
  filled?: boolean;
  /** Drawn faintly, and its moving average in bold; on a logarithmic scale where that shows more. */
  averaged?: boolean;
}

interface Props {
  title: string;
  /** In words, for those who do not see the curve. */
  summary: string;
  across: "time" | "step";
  xs: number[];
  curves: Curve[];
  marks?: Mark[];
  /** Whether the marks have their numbers above them. */
  numbered?: boolean;
  checkpoints?: number[];
  /** Of the horizontal axis. */
  range?: [number, number];
  /** Without words on the horizontal axis, below it, and as a table: another chart has them. */
  bare?: boolean;
  /** Whether the vertical axis begins at 0. */
  fromZero?: boolean;
  /** Charts with the same word show the same place under the cursor. */
  sync?: string;
  height?: number;
  format?: (value: number | null | undefined) => string;
}

const MOST_ROWS = 200;

export function Chart(props: Props) {
  const { title, summary, across, xs, curves, bare = false, format = figure } = props;
  const place = useRef<HTMLDivElement>(null);
  const theme = useTheme();
  const drawn = JSON.stringify([across, curves.map((curve) => [curve.label, scaleOf(curve)])]);
  const plot = useRef<uPlot | null>(null);
  const newest = useRef(props);
  newest.current = props;

  useEffect(() => {
    const div = place.current;
    if (div === null) return undefined;
    const draw = (): void => {
      plot.current?.destroy();
      plot.current = new uPlot(options(div, () => newest.current), data(newest.current), div);
    };
    draw();
    const observer = new ResizeObserver(() => {
      if (!isPrinting()) plot.current?.setSize({ width: div.clientWidth, height: heightOf(newest.current) });
    });
    observer.observe(div);
    addEventListener("beforeprint", draw);
    return () => {
      removeEventListener("beforeprint", draw);
      observer.disconnect();
      plot.current?.destroy();
      plot.current = null;
    };
  }, [drawn, theme]);
  useEffect(() => plot.current?.setData(data(props)), [xs, curves]);

  return (
    <figure class="chart">
      <figcaption>{title}</figcaption>
      <div ref={place} role="img" aria-label={`${title}: ${summary}`} />
      {!bare && (
        <>
          <p class="summary">{summary}</p>
          <details>
            <summary>Table of {title.toLowerCase()}</summary>
            <Table {...{ across, xs, curves, format, title }} />
          </details>
        </>
      )}
    </figure>
  );
}

function Table({ across, xs, curves, format = figure, title }: Omit<Props, "summary">) {
  const stride = Math.ceil(xs.length / MOST_ROWS);
  const rows = xs.map((_, at) => at).filter((at) => at % stride === 0 || at === xs.length - 1);
  return (
    <div class="scrolls" tabIndex={0} role="region" aria-label={`Table of ${title.toLowerCase()}`}>
      <table>
        <thead>
          <tr>
            <th scope="col">{across === "time" ? "time (UTC)" : "step"}</th>
            {curves.map((curve) => (
              <th scope="col" key={curve.label}>
                {curve.label}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((at) => (
            <tr key={at}>
              <td>{across === "time" ? clock(xs[at] ?? 0) : whole(xs[at])}</td>
              {curves.map((curve) => (
                <td key={curve.label}>{format(curve.values[at])}</td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function heightOf({ height = 180, bare, numbered }: Props): number {
  return height - (bare ? 20 : 0) + (numbered ? 18 : 0);
}

function scaleOf(curve: Curve): "log" | "linear" {
  return curve.averaged && isLogarithmic(curve.values) ? "log" : "linear";
}

function data({ xs, curves }: Props): uPlot.AlignedData {
  return [xs, ...curves.flatMap((curve) => [curve.values, ...(curve.averaged ? [averageOf(curve)] : [])])];
}

function averageOf(curve: Curve): (number | null)[] {
  return averaged(curve.values, scaleOf(curve) === "log");
}

/** On paper twice as large, for its style sheet to halve: lines and words are as fine as those around. */
function options(div: HTMLElement, newest: () => Props): uPlot.Options {
  const { across, curves, range, bare = false, numbered = false, fromZero = false, sync, format = figure } = newest();
  const [times, onPaper] = isPrinting() ? [2, div.closest(".charts") ? 335 : 690] : [1, null];
  const style = getComputedStyle(div);
  const color = (name: string): string => style.getPropertyValue(name).trim();
  const line = { stroke: color("--line"), width: times };
  const axis = { stroke: color("--quiet"), font: `${12 * times}px system-ui, sans-serif`, gap: 5 * times };
  const all = { ...axis, grid: line, ticks: { show: false } };
  const logarithmic = curves.some((curve) => scaleOf(curve) === "log");
  return {
    width: times * (onPaper ?? div.clientWidth),
    height: times * heightOf(newest()),
    padding: [(numbered ? 26 : 8) * times, 30 * times, (bare ? 8 : 0) * times, 0],
    cursor: { points: { size: 6 }, ...(sync ? { sync: { key: sync } } : {}) },
    legend: { show: curves.length > 1 },
    tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
    scales: {
      x: { time: across === "time", ...(range ? { range: () => newest().range ?? range } : {}) },
      y: logarithmic
        ? { distr: 3, range: (_plot, low, high) => [oneDigit(low ?? 1), (high ?? 10) * 1.3] }
        : { range: (_plot, low, high) => (fromZero ? [0, (high || 1) * 1.1] : room(low, high)) },
    },
    axes: [
      {
        ...all,
        size: (bare ? 0 : 28) * times,
        space: (across === "time" ? 80 : 60) * times,
        values: (_plot, ticks, _axis, _space, step) => ticks.map((tick) => (bare ? "" : tickAt(across, tick, step))),
      },
      {
        ...all,
        size: 64 * times,
        space: 30 * times,
        values: (_plot, ticks) => ticks.map((tick) => (tick === null ? "" : format(tick))),
        ...(logarithmic ? { filter: powers, grid: { ...line, filter: powers } } : {}),
        ...(curves.every((curve) => curve.stepped) ? { incrs: WHOLE } : {}),
      },
    ],
    series: [
      { label: across === "time" ? "time (UTC)" : "step", value: (_plot, x) => shownAt(across, x) },
      ...curves.flatMap((curve, at) => {
        const own = lineOf(curve, color(`--curve-${at % 8}`), times, format);
        const faint = { ...own, stroke: color("--faint"), width: times };
        return curve.averaged ? [faint, { ...own, label: "average", points: { show: false } }] : [own];
      }),
    ],
    hooks: { draw: [(plot) => drawMarks(plot, newest(), color, times)] },
  };
}

/** The next lower number of one digit, at which the ticks of a logarithmic axis begin. */
function oneDigit(value: number): number {
  const power = 10 ** Math.floor(Math.log10(value));
  return Math.max(1, Math.floor(value / power)) * power;
}

/** Of a logarithmic axis only powers of ten have lines, unless there are fewer than two. */
function powers(_plot: uPlot, ticks: (number | null)[]): (number | null)[] {
  const found = ticks.map((tick) => (tick !== null && Math.abs(Math.log10(tick) % 1) < 1e-6 ? tick : null));
  return found.filter((tick) => tick !== null).length < 2 ? ticks : found;
}

/** Steps of an axis of what can be counted. */
const WHOLE = Array.from({ length: 13 }, (_, power) => [1, 2, 5].map((each) => each * 10 ** power)).flat();

function lineOf(
  curve: Curve,
  stroke: string,
  times: number,
  format: (value: number | null | undefined) => string,
): uPlot.Series {
  const stepped = curve.stepped ? uPlot.paths.stepped?.({ align: 1 }) : undefined;
  return {
    label: curve.label,
    stroke,
    width: 2 * times,
    spanGaps: true,
    value: (_plot, value) => format(value),
    ...(stepped ? { paths: stepped, points: { show: false } } : {}),
    ...(curve.dashed ? { dash: [6 * times, 4 * times] } : {}),
    ...(curve.filled ? { fill: `color-mix(in srgb, ${stroke} 14%, transparent)` } : {}),
  };
}

/** A tick of the axis, where the next one is `step` further. */
function tickAt(across: "time" | "step", x: number, step: number): string {
  if (across === "step") return whole(x);
  if (step >= DAY || (step >= 60 && x % DAY === 0)) return day(x);
  return clock(x).slice(0, step >= 60 ? 5 : 8);
}

const DAY = 86_400;

function shownAt(across: "time" | "step", x: number | null): string {
  if (x === null) return "–";
  return across === "time" ? clock(x) : whole(x);
}

/** Some room above and below; a flat curve lies in the middle, and what cannot be negative begins at 0. */
function room(low: number | null, high: number | null): [number, number] {
  if (low === null || high === null) return [0, 1];
  const more = (high - low || Math.abs(high) || 1) * 0.08;
  return [low >= 0 && low - more < 0 ? 0 : low - more, high + more];
}

/** Pixels between two numbers, at least. */
const APART = 40;

function drawMarks(plot: uPlot, props: Props, color: (name: string) => string, times: number): void {
  const { ctx, bbox } = plot;
  const { marks = [], checkpoints = [], numbered = false } = props;
  const px = (ctx.canvas.width / plot.width) * times;
  const bottom = bbox.top + bbox.height;
  const inside = (at: number): number | null => {
    const x = Math.round(plot.valToPos(at, "x", true)) + 0.5;
    return x < bbox.left - 1 || x > bbox.left + bbox.width + 1 ? null : x;
  };
  ctx.save();
  ctx.lineWidth = px;
  for (const mark of marks) {
    const x = inside(mark.at);
    if (x === null) continue;
    ctx.strokeStyle = ctx.fillStyle = color(`--mark-${mark.category}`);
    ctx.setLineDash(mark.category === "resize" ? [2 * px, 4 * px] : [4 * px, 2 * px]);
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bottom);
    ctx.stroke();
    if (mark.category !== "resize") ctx.fillRect(x - 3 * px, bbox.top, 7 * px, 7 * px);
  }
  ctx.fillStyle = color("--text");
  for (const at of checkpoints) {
    const x = inside(at);
    if (x === null) continue;
    ctx.beginPath();
    ctx.moveTo(x, bottom - 8 * px);
    ctx.lineTo(x + 4 * px, bottom);
    ctx.lineTo(x - 4 * px, bottom);
    ctx.fill();
  }
  const labels = numbered ? labelsOf(marks.map((mark) => inside(mark.at)), APART * px) : [];
  drawNumbers(ctx, labels, bbox.top - 20 * px, px, color);
  ctx.restore();
}

function drawNumbers(
  ctx: CanvasRenderingContext2D,
  labels: Label[],
  top: number,
  px: number,
  color: (name: string) => string,
): void {
  ctx.setLineDash([]);
  ctx.font = `${11 * px}px system-ui, sans-serif`;
  [ctx.textAlign, ctx.textBaseline] = ["center", "middle"];
  for (const { x, text } of labels) {
    const wide = ctx.measureText(text).width + 12 * px;
    ctx.beginPath();
    ctx.roundRect(x - wide / 2, top, wide, 16 * px, 8 * px);
    [ctx.fillStyle, ctx.strokeStyle] = [color("--card"), color("--quiet")];
    ctx.fill();
    ctx.stroke();
    ctx.fillStyle = color("--text");
    ctx.fillText(text, x, top + 8.5 * px);
  }
}

function useTheme(): string {
  const current = (): string => document.documentElement.dataset["theme"] ?? "";
  const [theme, setTheme] = useState(current);
  useEffect(() => {
    const observer = new MutationObserver(() => setTheme(current()));
    observer.observe(document.documentElement, { attributeFilter: ["data-theme"] });
    return () => observer.disconnect();
  }, []);
  return theme;
}
