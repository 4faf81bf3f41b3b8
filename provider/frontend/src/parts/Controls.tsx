import { useRef, useState } from "preact/hooks";
import { type Change, change, newToken } from "../model/api";
import { useAsking } from "../model/asking";
import type { Status, TaskIds } from "../model/types";
import { SizeForm } from "./SizeForm";

/** Seconds that a drill leaves a worker. */
const DRILL = 30;

export interface Changes {
  scale: (workers: number) => void;
  pause: () => void;
  resume: () => void;
  notice: (worker: string) => void;
  end: () => void;
  busy: boolean;
  said: string;
}

/** What a person asks of the run, and what came of it. */
export function useChanges(ids: TaskIds, after: () => void): Changes {
  const { ask, busy, said } = useAsking(after);
  const to = (what: Change, more: object, done: string): void => ask(() => change(what, ids, more), done);
  return {
    scale: (workers) => to("scale", { workers }, `${workers} workers are asked for`),
    pause: () => to("pause", {}, "A pause is asked for: workers go once the state is durable"),
    resume: () => to("resume", {}, "The run has been asked to go on"),
    notice: (worker) => to("notice", { worker, seconds: DRILL }, `${worker} has a notice of ${DRILL} s`),
    end: () => to("end", {}, "The run has been asked to end"),
    busy,
    said,
  };
}

/** A button that shows, once, the command by which a machine joins the run. Nothing keeps it. */
function AddMachine({ ids, busy }: { ids: TaskIds; busy: boolean }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const [command, setCommand] = useState("");
  const [problem, setProblem] = useState("");
  async function show(): Promise<void> {
    setCommand("");
    setProblem("");
    dialog.current?.showModal();
    try {
      setCommand(await newToken(ids));
    } catch (error) {
      setProblem(String((error as Error).message));
    }
  }
  return (
    <>
      <button type="button" disabled={busy} onClick={() => void show()}>
        Add a machine…
      </button>
      <dialog ref={dialog} aria-labelledby="machine-title" onClose={() => setCommand("")}>
        <h2 id="machine-title">Add a machine</h2>
        {command && (
          <>
            <p>Run this command on the machine, within an hour. It holds a secret, works once, and is not shown again.</p>
            <pre class="command" tabIndex={0} aria-label="Command">{command}</pre>
          </>
        )}
        <output aria-live="polite">{problem}</output>
        <form method="dialog">
          <button type="submit">Close</button>
        </form>
      </dialog>
    </>
  );
}

interface Props {
  ids: TaskIds;
  joinable: boolean;
  changes: Changes;
  status: Status;
  limits: { minimum: number; maximum: number } | null;
}

export function Controls({ ids, joinable, changes, status, limits }: Props) {
  const pause = status.pause && !status.pause.refused ? status.pause : null;
  const target = pause ? pause.workers : status.target_size;
  const dialog = useRef<HTMLDialogElement>(null);
  return (
    <section class="controls" aria-label="Change the run">
      <SizeForm
        label="Workers"
        button="Scale"
        size={target}
        least={limits?.minimum ?? 1}
        most={limits?.maximum}
        disabled={changes.busy || pause !== null}
        ask={changes.scale}
      />
      <button type="button" disabled={changes.busy} onClick={pause ? changes.resume : changes.pause}>
        {pause ? "Resume" : "Pause"}
      </button>
      {joinable && <AddMachine ids={ids} busy={changes.busy} />}
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
