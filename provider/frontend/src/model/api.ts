/** The server's routes, relative to the page: Airflow may be served below a path of its own. */

import type { CostsAnswer, DagRunTask, RunsPage, TaskIds, TaskPage } from "./types";

export class ServerSays extends Error {
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }
}

const REQUEST_TIMEOUT = 20_000; // Milliseconds.

async function ask<T>(path: string, init: RequestInit = {}): Promise<T> {
  let answer: Response;
  try {
    answer = await fetch(`api/v1/${path}`, {
      credentials: "same-origin",
      signal: AbortSignal.timeout(REQUEST_TIMEOUT),
      ...init,
    });
  } catch {
    throw new ServerSays(0, "Airflow does not answer");
  }
  const text = await answer.text();
  let said: unknown = null;
  try {
    said = JSON.parse(text);
  } catch {
    throw new ServerSays(answer.status, `Airflow answers with ${answer.status} and no document`);
  }
  if (!answer.ok) throw new ServerSays(answer.status, complaint(said, answer.status));
  return said as T;
}

function complaint(said: unknown, status: number): string {
  if (typeof said === "object" && said !== null) {
    const { message, detail } = said as { message?: unknown; detail?: unknown };
    for (const each of [message, detail]) if (typeof each === "string") return each;
  }
  return status === 403 ? "You may not do that" : `Airflow answers with ${status}`;
}

export function fetchTask(query: URLSearchParams): Promise<TaskPage> {
  return ask(`task?${query}`);
}

export async function fetchDagRun(query: URLSearchParams): Promise<DagRunTask[]> {
  return (await ask<{ tasks: DagRunTask[] }>(`dag-run?${query}`)).tasks;
}

export function fetchRuns(query: URLSearchParams): Promise<RunsPage> {
  return ask(`runs?${query}`);
}

export function fetchCosts(query: URLSearchParams): Promise<CostsAnswer> {
  return ask(`costs?${query}`);
}

export type Change = "scale" | "pause" | "resume" | "notice" | "end";

/** Change a run. */
export async function change(what: Change, ids: TaskIds, more: object): Promise<void> {
  await post(what, { ...ids, ...more });
}

/** Have a pool with so many workers at most. */
export async function resizePool(pool: string, workers: number): Promise<void> {
  await post("pool", { pool, workers });
}

/** The command by which a machine joins the run. Secret. */
export async function newToken(ids: TaskIds): Promise<string> {
  return (await post<{ command: string }>("token", ids)).command;
}

/** The header is one that a form of another site cannot send. */
function post<T>(path: string, body: object): Promise<T> {
  return ask(path, {
    method: "POST",
    headers: { "Content-Type": "application/json", "X-Elastic-Training": "1" },
    body: JSON.stringify(body),
  });
}
