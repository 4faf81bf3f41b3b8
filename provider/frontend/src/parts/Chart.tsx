import { useEffect, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { clock, figure, whole } from "../model/format";
import type { Mark } from "../model/marks";

export interface Curve {
  label: string;
  values: (number | null)[];
  /** Holds its value until the next point. */
  stepped?: boolean;
  dashed?: boolean;
}

interface Props {
  title: string;
  /** In words, for those who do not see the curve. */
  summary: string;
  across: "time" | "step";
  xs: number[];
  curves: Curve[];
  marks?: Mark[];
  format?: (value: number | null | undefined) => string;
}

const HEIGHT = 180;
const MOST_ROWS = 200;

export function Chart({ title, summary, across, xs, curves, marks = [], format = figure }: Props) {
  const place = useRef<HTMLDivElement>(null);
  const theme = useTheme();
  const drawn = JSON.stringify([across, curves.map((curve) => curve.label)]);
  const plot = useRef<uPlot | null>(null);
  const newest = useRef(marks);
  newest.current = marks;

  useEffect(() => {
    const div = place.current;
    if (div === null) return undefined;
    const made = new uPlot(options(div, across, curves, format, () => newest.current), data(xs, curves), div);
    plot.current = made;
    const observer = new ResizeObserver(() => made.setSize({ width: div.clientWidth, height: HEIGHT }));
    observer.observe(div);
    return () => {
      observer.disconnect();
      made.destroy();
    };
  }, [drawn, theme]);
  useEffect(() => plot.current?.setData(data(xs, curves)), [xs, curves]);

  return (
    <figure class="chart">
      <figcaption>{title}</figcaption>
      <div ref={place} role="img" aria-label={`${title}: ${summary}`} />
      <p class="summary">{summary}</p>
      <details>
        <summary>Table of {title.toLowerCase()}</summary>
        <Table across={across} xs={xs} curves={curves} format={format} title={title} />
      </details>
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

function data(xs: number[], curves: Curve[]): uPlot.AlignedData {
  return [xs, ...curves.map((curve) => curve.values)];
}

function options(
  div: HTMLElement,
  across: "time" | "step",
  curves: Curve[],
  format: (value: number | null | undefined) => string,
  marks: () => Mark[],
): uPlot.Options {
  const style = getComputedStyle(div);
  const colour = (name: string): string => style.getPropertyValue(name).trim();
  const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
  const stepped = uPlot.paths.stepped?.({ align: 1 });
  return {
    width: div.clientWidth,
    height: HEIGHT,
    cursor: { points: { size: 6 } },
    legend: { show: curves.length > 1 },
    tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
    scales: { x: { time: across === "time" }, y: { range: (_plot, low, high) => room(low, high) } },
    axes: [
      { ...axis, size: 28, space: across === "time" ? 80 : 50, values: (_plot, ticks) => ticks.map((tick) => shownAt(across, tick)) },
      { ...axis, size: 64, values: (_plot, ticks) => ticks.map((tick) => format(tick)) },
    ],
    series: [
      { label: across === "time" ? "time (UTC)" : "step", value: (_plot, x) => shownAt(across, x) },
      ...curves.map((curve, at) => ({
        label: curve.label,
        stroke: colour(`--curve-${at % 6}`),
        width: 2,
        spanGaps: true,
        value: (_plot: uPlot, value: number | null) => format(value),
        ...(curve.stepped && stepped ? { paths: stepped, points: { show: false } } : {}),
        ...(curve.dashed ? { dash: [6, 4] } : {}),
      })),
    ],
    hooks: across === "time" ? { draw: [(plot) => drawMarks(plot, marks(), colour)] } : {},
  };
}

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

function drawMarks(plot: uPlot, marks: Mark[], colour: (name: string) => string): void {
  const { ctx, bbox } = plot;
  ctx.save();
  for (const mark of marks) {
    const x = Math.round(plot.valToPos(mark.time, "x", true)) + 0.5;
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    ctx.strokeStyle = ctx.fillStyle = colour(`--mark-${mark.category}`);
    ctx.setLineDash(mark.category === "resize" ? [2, 4] : []);
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    if (mark.category !== "resize") ctx.fillRect(x - 3, bbox.top, 7, 7);
  }
  ctx.restore();
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
