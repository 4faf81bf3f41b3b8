/** What is drawn over time: sizes as steps, events as marks. Pure. */

import type { RunEvent, Status } from "./types";

export type Category = "notice" | "loss" | "handover" | "resize" | "other";

const CATEGORIES: Record<string, Category> = {
  notice: "notice",
  lost: "loss",
  rank_failed: "loss",
  restarted: "loss",
  suspended: "loss",
  handover: "handover",
  scaled: "resize",
  size_asked: "resize",
};

export interface Mark {
  time: number;
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

/** Events that explain a change of size; checkpoints and the like are in the list only. */
export function marksOf(status: Status): Mark[] {
  return status.events
    .map((event) => ({ time: seconds(event.time), category: categoryOf(event), label: event.message }))
    .filter((mark) => mark.category !== "other" && Number.isFinite(mark.time));
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
