/** Text about what is unknown of a run: a script that reports no step, or writes its own checkpoints. Pure. */
import { whole } from "./format";
import type { Status } from "./types";

export const UNKNOWN = "unknown";

/** Of a run that has trained and told none, nobody knows it. */
export function stepOf(run: { step: number | null; started: string | null }): string {
  return tellsNoStep(run) ? UNKNOWN : whole(run.step);
}

export function tellsNoStep({ step, started }: { step: number | null; started: string | null }): boolean {
  return step === null && started !== null;
}

export function unknownTime(status: Status): string {
  const found: string[] = [];
  if (tellsNoStep(status)) found.push("The script reports no step: the time to each world's first step is unknown.");
  if (!("checkpoint" in status.lost_seconds)) {
    found.push("No durable checkpoint was reported: the time for the script's own checkpoints is unknown.");
  }
  return found.join(" ");
}
