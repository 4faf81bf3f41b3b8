import { useEffect, useRef, useState } from "preact/hooks";
import { change } from "../model/api";
import type { TaskIds } from "../model/types";

/** Seconds that a drill leaves a worker. */
const DRILL = 30;

export interface Changes {
  scale: (workers: number) => void;
  notice: (worker: string) => void;
  end: () => void;
  busy: boolean;
  said: string;
}

/** What a person asks of the run, and what came of it. */
export function useChanges(ids: TaskIds, after: () => void): Changes {
  const [busy, setBusy] = useState(false);
  const [said, setSaid] = useState("");
  async function ask(what: "scale" | "notice" | "end", more: object, done: string): Promise<void> {
    setBusy(true);
    try {
      await change(what, ids, more);
      setSaid(done);
    } catch (problem) {
      setSaid(String((problem as Error).message));
    }
    setBusy(false);
    after();
  }
  return {
    scale: (workers) => void ask("scale", { workers }, `${workers} workers are asked for`),
    notice: (worker) => void ask("notice", { worker, seconds: DRILL }, `${worker} has a notice of ${DRILL} s`),
    end: () => void ask("end", {}, "The run has been asked to end"),
    busy,
    said,
  };
}

interface Props {
  changes: Changes;
  target: number;
  limits: { minimum: number; maximum: number } | null;
}

export function Controls({ changes, target, limits }: Props) {
  const [workers, setWorkers] = useState(String(target));
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => setWorkers(String(target)), [target]);
  return (
    <section class="controls" aria-label="Change the run">
      <form
        onSubmit={(event) => {
          event.preventDefault();
          changes.scale(Number(workers));
        }}
      >
        <label>
          Workers
          <input
            type="number"
            required
            step={1}
            min={limits?.minimum ?? 1}
            {...(limits ? { max: limits.maximum } : {})}
            value={workers}
            onInput={(event) => setWorkers(event.currentTarget.value)}
          />
        </label>
        <button type="submit" disabled={changes.busy}>
          Scale
        </button>
      </form>
      <button type="button" class="dangerous" disabled={changes.busy} onClick={() => dialog.current?.showModal()}>
        End the run…
      </button>
      <output aria-live="polite">{changes.said}</output>
      <dialog ref={dialog} aria-labelledby="end-title">
        <h2 id="end-title">End this run?</h2>
        <p>Its ranks are stopped, and its task fails. Durable checkpoints stay.</p>
        <form method="dialog">
          <button type="submit">Keep it</button>
          <button type="submit" class="dangerous" onClick={changes.end}>
            End it
          </button>
        </form>
      </dialog>
    </section>
  );
}
