/** What is drawn over time: sizes as steps, events as marks. Pure. */

import type { RunEvent, Status } from "./types";

export type Category = "notice" | "loss" | "handover" | "resize" | "fault" | "other";

const CATEGORIES: Record<string, Category> = {
  notice: "notice",
  lost: "loss",
  rank_failed: "loss",
  restarted: "loss",
  suspended: "loss",
  handover: "handover",
  paused: "resize",
  scaled: "resize",
  size_asked: "resize",
  standstill: "fault",
  ranks_differ: "fault",
  straggler: "fault",
};

export interface Mark {
  /** Unix seconds, or a step. */
  at: number;
  category: Category;
  label: string;
}

export function categoryOf(event: RunEvent): Category {
  return CATEGORIES[event.kind] ?? "other";
}

/** Unix seconds. */
export function seconds(time: string): number {
  return new Date(time).getTime() / 1000;
}

/** Events that explain a change of size or of pace; checkpoints and the like are in the list only. */
function explains(event: RunEvent): boolean {
  return categoryOf(event) !== "other" && Number.isFinite(seconds(event.time));
}

export function marksOf(status: Status): Mark[] {
  return status.events
    .filter(explains)
    .map((event) => ({ at: seconds(event.time), category: categoryOf(event), label: event.message }));
}

/** Each event as it is marked in the chart: its number among {@link marksOf}, a triangle for a checkpoint, or nothing. */
export function signsOf(events: RunEvent[]): Map<RunEvent, string> {
  let number = 0;
  return new Map(
    events.map((event) => [event, explains(event) ? String((number += 1)) : event.kind === "checkpoint" ? "▲" : ""]),
  );
}

export function checkpointsOf(status: Status): number[] {
  return status.events
    .filter((event) => event.kind === "checkpoint")
    .map((event) => seconds(event.time))
    .filter(Number.isFinite);
}

/** Steps at which another world began. */
export function worldsOf(status: Status): Mark[] {
  return status.history.flatMap(({ step, size }) =>
    step === null ? [] : [{ at: step, category: "resize" as const, label: `${size} ranks` }],
  );
}

/** From the first that is known of the run to its end, or to now. */
export function spanOf(status: Status): [number, number] {
  const told = [...status.asked, ...status.history, ...status.events].map(({ time }) => time);
  const known = [status.started, status.updated, ...told].flatMap((time) => (time === null ? [] : [seconds(time)]));
  const end = status.finished === null ? Math.max(...known) : seconds(status.finished);
  const start = Math.min(...known);
  return [start, Math.max(end, start + 1)];
}

export interface Label {
  x: number;
  text: string;
}

/** Numbers of marks at these places, from 1; those that are closer than `apart` share one. Null: not in sight. */
export function labelsOf(places: (number | null)[], apart: number): Label[] {
  const groups: { x: number; first: number; last: number }[] = [];
  places.forEach((x, at) => {
    if (x === null) return;
    const before = groups.at(-1);
    if (before && x < before.x + apart) before.last = at + 1;
    else groups.push({ x, first: at + 1, last: at + 1 });
  });
  return groups.map(({ x, first, last }) => ({ x, text: first === last ? `${first}` : `${first}–${last}` }));
}

export interface Sizes {
  times: number[];
  /** Ranks that train. */
  world: (number | null)[];
  /** Workers asked for. */
  asked: (number | null)[];
}

/** World size and size asked on one axis of time; each value holds until the next one. */
export function sizesOf(status: Status): Sizes {
  const end = seconds(status.finished ?? status.updated);
  const world = new Map(status.history.map((each) => [seconds(each.time), each.size]));
  const asked = new Map(status.asked.map((each) => [seconds(each.time), each.workers]));
  const times = [...new Set([...world.keys(), ...asked.keys(), end])].filter(Number.isFinite).sort((a, b) => a - b);
  return { times, world: held(times, world), asked: held(times, asked) };
}

function held(times: number[], known: Map<number, number>): (number | null)[] {
  let last: number | null = null;
  return times.map((time) => (last = known.get(time) ?? last));
}

/** One figure of several workers on one axis of time. */
export function joined(columns: { times: number[]; values: (number | null)[] }[]): {
  times: number[];
  values: (number | null)[][];
} {
  const times = [...new Set(columns.flatMap((column) => column.times))].sort((a, b) => a - b);
  const values = columns.map((column) => {
    const known = new Map(column.times.map((time, at) => [time, column.values[at] ?? null]));
    return times.map((time) => known.get(time) ?? null);
  });
  return { times, values };
}
