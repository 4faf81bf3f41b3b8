import { useMemo, useState } from "preact/hooks";
import { bytes, figure } from "../model/format";
import { joined } from "../model/marks";
import type { Status } from "../model/types";
import { Chart } from "./Chart";

const perSecond = (value: number | null | undefined): string => bytes(value, "/s");
const FIGURES = [
  ["cpu_percent", "Processor (% of a core)", figure],
  ["memory_bytes", "Memory", bytes],
  ["receive_bytes_per_second", "Network received", perSecond],
  ["transmit_bytes_per_second", "Network sent", perSecond],
  ["gpu_percent", "GPU (%)", figure],
  ["gpu_memory_bytes", "GPU memory", bytes],
] as const;
/** Workers that are chosen at the start: those that train before those that are gone. */
const FIRST = 8;

/** What the workers use, of all or some of them. */
export function HardwareCharts({ status }: { status: Status }) {
  const names = Object.keys(status.hardware).sort();
  const [chosen, setChosen] = useState<ReadonlySet<string> | null>(null);
  const ranks = new Map(status.workers.map((worker) => [worker.name, worker.ranks]));
  const first = [...names].sort((a, b) => Number(!ranks.get(a)?.length) - Number(!ranks.get(b)?.length)).slice(0, FIRST);
  const shown = names.filter((name) => (chosen ? chosen.has(name) : first.includes(name)));
  if (!names.length) return <p class="empty">No worker has told of its hardware yet.</p>;
  const toggle = (name: string): void => {
    const next = new Set(shown);
    if (!next.delete(name)) next.add(name);
    setChosen(next);
  };
  return (
    <>
      <fieldset class="chooser">
        <legend>Workers</legend>
        <button type="button" onClick={() => setChosen(new Set(names))}>
          all
        </button>
        <button type="button" onClick={() => setChosen(new Set())}>
          none
        </button>
        {names.map((name) => (
          <label key={name}>
            <input type="checkbox" checked={shown.includes(name)} onChange={() => toggle(name)} />
            {name}
            {ranks.get(name)?.length ? ` (rank ${ranks.get(name)?.join(", ")})` : ""}
          </label>
        ))}
      </fieldset>
      <div class="charts">
        {FIGURES.map(([column, title, format]) => (
          <HardwareChart key={column} {...{ status, column, title, format, shown }} />
        ))}
      </div>
    </>
  );
}

interface ChartProps {
  status: Status;
  column: string;
  title: string;
  shown: string[];
  format: (value: number | null | undefined) => string;
}

function HardwareChart({ status, column, title, shown, format }: ChartProps) {
  const told = shown.filter((name) => status.hardware[name]?.columns[column]?.some((value) => value !== null));
  const all = useMemo(
    () =>
      joined(
        told.map((name) => ({
          times: status.hardware[name]?.times ?? [],
          values: status.hardware[name]?.columns[column] ?? [],
        })),
      ),
    [status, told.join("\n")],
  );
  if (!told.length) return null;
  const newest = told.map((name, at) => `${name} ${format(all.values[at]?.findLast((value) => value !== null))}`);
  return (
    <Chart
      title={title}
      summary={`newest: ${newest.join(", ")}`}
      across="time"
      xs={all.times}
      curves={told.map((name, at) => ({ label: name, values: all.values[at] ?? [] }))}
      fromZero
      format={format}
    />
  );
}
