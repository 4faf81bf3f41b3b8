/** Text about the deadline and the budget of a run. Pure. */
import { moment, words } from "./format";
import type { Figure, Status } from "./types";

type Run = Pick<Status, "deadline" | "progress" | "phase" | "updated" | "finished">;

/** Whether the run will be in time, and what is spent of its budget; nothing of a run that has neither. */
export function deadlineOf(run: Run): Figure[] {
  const { deadline } = run;
  if (!deadline) return [];
  const figures: Figure[] = [];
  if (deadline.by !== null) {
    figures.push(["Deadline", `${moment(deadline.by).slice(0, 16)} UTC`, [course(run), held(run)].join("")]);
  }
  if (deadline.spent !== null) {
    const left = deadline.budget === null ? [] : [`${dollars(deadline.budget - deadline.spent)} left of ${dollars(deadline.budget)}`];
    const trouble = deadline.by === null && deadline.words ? [deadline.words] : [];
    figures.push(["Spent on workers", dollars(deadline.spent), [...left, ...trouble].join("; ")]);
  }
  return figures;
}

function course({ deadline, progress, phase, updated, finished }: Run): string {
  const by = new Date(deadline?.by ?? "").getTime();
  if (finished !== null) return new Date(finished).getTime() <= by ? `${words(phase)} in time` : `${words(phase)} after it`;
  if (deadline?.words) return deadline.words;
  if (!progress || progress.seconds === null) return "not known yet";
  const end = new Date(updated).getTime() + progress.seconds * 1000;
  return end <= by ? "on course" : "not yet on course";
}

function held({ deadline }: Run): string {
  return deadline?.held_until ? `; size kept until ${moment(deadline.held_until).slice(11, 16)} UTC` : "";
}

function dollars(amount: number): string {
  return `${amount.toFixed(2)} $`;
}
