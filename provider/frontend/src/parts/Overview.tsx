import { useMemo } from "preact/hooks";
import { marksOf, spanOf } from "../model/marks";
import type { Status } from "../model/types";
import { Chart } from "./Chart";
import { SizeChart, summaryOf } from "./Curves";

/** The loss, or else the first metric, above the world size, on one axis of time. */
export function Overview({ status }: { status: Status }) {
  const range = useMemo(() => spanOf(status), [status]);
  const marks = useMemo(() => marksOf(status), [status]);
  const name = "loss" in status.series ? "loss" : Object.keys(status.series)[0];
  const series = name === undefined ? undefined : status.series[name];
  const drawn = series !== undefined && series.values.length > 0;
  return (
    <div class="overview">
      {drawn && (
        <Chart
          title={`${name} over time`}
          summary={summaryOf(series)}
          across="time"
          xs={series.times}
          curves={[{ label: name ?? "", values: series.values, averaged: true }]}
          marks={marks}
          {...{ range, numbered: true, bare: true, sync: "overview", height: 240 }}
        />
      )}
      <SizeChart status={status} {...{ range, numbered: !drawn, sync: "overview" }} />
    </div>
  );
}
