/** The command that rehearses a run's task on past markets, with what the run has measured. Pure. */
import type { Status } from "./types";

export const UNKNOWN_MACHINE = "MACHINE";

type Run = Pick<Status, "progress" | "paces" | "workers" | "target_size">;

/** Null: no pace is measured, or the script does not tell how many steps it has. */
export function rehearsalOf(
  { progress, paces, workers, target_size: target }: Run,
  limits: { minimum: number; maximum: number } | null,
): string | null {
  const slots = workers[0]?.slots ?? 1;
  const pace = [...(paces ?? [])]
    .filter(({ ranks, steps, seconds }) => ranks > 0 && ranks % slots === 0 && steps > 0 && seconds > 0)
    .sort((one, other) => other.seconds - one.seconds)[0];
  if (!progress || !pace) return null;
  const start = pace.ranks / slots;
  const options: [string, string | number][] = [
    ["steps", progress.steps],
    ["step-seconds", Number((pace.seconds / pace.steps).toPrecision(3))],
    ["min", Math.min(limits?.minimum ?? start, start)],
    ["start", start],
    ["max", Math.max(limits?.maximum ?? target, start)],
    ["market", marketOf(workers.map((worker) => worker.instance_type))],
  ];
  return ["elastic-training rehearse", ...options.map(([name, value]) => `--${name} ${value}`)].join(" ");
}

/** The first type that is known. Labels of nodes may be anything, and people paste the command into a shell. */
function marketOf(types: (string | null)[]): string {
  return types.find((type) => type !== null && /^[\w.-]+$/.test(type)) ?? UNKNOWN_MACHINE;
}
