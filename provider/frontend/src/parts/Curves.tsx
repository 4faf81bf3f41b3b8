import { useMemo, useState } from "preact/hooks";
import { figure, whole } from "../model/format";
import { checkpointsOf, marksOf, sizesOf, worldsOf } from "../model/marks";
import type { Series, Status } from "../model/types";
import { Chart } from "./Chart";

const LEGEND = [
  ["notice", "notice"],
  ["loss", "loss"],
  ["handover", "hand-over"],
  ["resize", "resize"],
  ["fault", "standstill, difference, straggler"],
] as const;

interface SizeProps {
  status: Status;
  range?: [number, number];
  numbered?: boolean;
  sync?: string;
}

/** World size against the size asked, with what happened. */
export function SizeChart({ status, numbered = true, ...more }: SizeProps) {
  const sizes = useMemo(() => sizesOf(status), [status]);
  const marks = useMemo(() => marksOf(status), [status]);
  const checkpoints = useMemo(() => checkpointsOf(status), [status]);
  const shown = sizes.world.filter((size, at) => size !== null && size !== sizes.world[at - 1]);
  return (
    <>
      <Chart
        title="Ranks and workers over time"
        summary={`ranks that train: ${shown.join(" → ") || "none yet"}; workers asked for now: ${status.target_size}`}
        across="time"
        xs={sizes.times}
        curves={[
          { label: "ranks that train", values: sizes.world, stepped: true, filled: true },
          { label: "workers asked for", values: sizes.asked, stepped: true, dashed: true },
        ]}
        marks={marks}
        checkpoints={checkpoints}
        format={whole}
        fromZero
        {...{ numbered, ...more }}
      />
      <ul class="legend" aria-label="Marks">
        {LEGEND.map(([category, name]) => (
          <li key={category}>
            <span class={`swatch ${category}`} aria-hidden="true" />
            {name}: {marks.filter((mark) => mark.category === category).length}
          </li>
        ))}
        <li>▲ durable checkpoint: {checkpoints.length}</li>
      </ul>
    </>
  );
}

/** Every metric, and the throughput, over steps or time. */
export function Metrics({ status }: { status: Status }) {
  const [across, setAcross] = useState<"step" | "time">("step");
  const all: [string, Series][] = [
    ...Object.entries(status.series),
    ["Steps a second", status.throughput],
    ["Samples a second", status.sample_throughput],
  ];
  const curves = all.filter(([, series]) => series.values.length > 0);
  if (!curves.length) return <p class="empty">No rank has reported a figure yet.</p>;
  return (
    <>
      <div class="switch" role="group" aria-label="Horizontal axis">
        {(["step", "time"] as const).map((each) => (
          <button key={each} type="button" aria-pressed={across === each} onClick={() => setAcross(each)}>
            over {each === "step" ? "steps" : "time"}
          </button>
        ))}
      </div>
      <div class="charts">
        {curves.map(([name, series]) => (
          <Chart
            key={name}
            title={name}
            summary={summaryOf(series)}
            across={across}
            xs={across === "step" ? series.steps : series.times}
            curves={[{ label: name, values: series.values, averaged: true }]}
            marks={across === "step" ? worldsOf(status) : marksOf(status)}
          />
        ))}
      </div>
      <p class="empty">Bold: moving average. Lines: {across === "step" ? "another world begins." : "as above."}</p>
    </>
  );
}

export function summaryOf({ values, steps }: Series): string {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  return `newest ${figure(values.at(-1))} at step ${whole(steps.at(-1))}; from ${figure(low)} to ${figure(high)}`;
}
