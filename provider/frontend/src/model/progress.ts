/** Text about the percentage and the estimated time left of a run. Pure. */
import { duration, figure, moment, whole } from "./format";
import type { Progress } from "./types";

type Run = { progress?: Progress | null };

/** ``40 % of 3,000``; empty: the script does not tell how many steps it has. */
export function doneOf({ progress }: Run): string {
  return progress ? `${figure(progress.percent)} % of ${whole(progress.steps)}` : "";
}

/** The time left, and its interval with the expected end; null: the script does not tell how many steps it has. */
export function leftOf({ progress, updated }: Run & { updated: string }): [value: string, more: string] | null {
  if (!progress || (progress.seconds === null && !progress.basis)) return null;
  if (progress.seconds === null) return ["–", progress.basis];
  const end = moment(new Date(new Date(updated).getTime() + progress.seconds * 1000).toISOString()).slice(0, 16);
  const between = `${rough(progress.least)} to ${rough(progress.most)}, until ${end} UTC`;
  return [rough(progress.seconds), progress.basis ? `${between}; ${progress.basis}` : between];
}

/** Both in few characters, for a list: ``40 %, 12:00 left``. */
export function shortOf({ progress }: Run): string {
  if (!progress) return "";
  const left = progress.seconds === null ? "" : `, ${rough(progress.seconds)} left`;
  return `${figure(progress.percent)} %${left}`;
}

/** Without tenths of a second, which no estimate has. */
function rough(seconds: number | null): string {
  return seconds !== null && seconds < 60 ? `${Math.round(seconds)} s` : duration(seconds);
}
