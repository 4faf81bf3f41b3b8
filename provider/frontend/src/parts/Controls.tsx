import { useRef, useState } from "preact/hooks";
import { type Change, change, newToken } from "../model/api";
import type { Status, TaskIds } from "../model/types";

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
  const [busy, setBusy] = useState(false);
  const [said, setSaid] = useState("");
  async function ask(what: Change, more: object, done: string): Promise<void> {
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
    pause: () => void ask("pause", {}, "A pause is asked for: workers go once the state is durable"),
    resume: () => void ask("resume", {}, "The run has been asked to go on"),
    notice: (worker) => void ask("notice", { worker, seconds: DRILL }, `${worker} has a notice of ${DRILL} s`),
    end: () => void ask("end", {}, "The run has been asked to end"),
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
  // What is typed counts until another size is asked for.
  const [typed, setTyped] = useState({ workers: String(target), target });
  const workers = typed.target === target ? typed.workers : String(target);
  const dialog = useRef<HTMLDialogElement>(null);
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
            onInput={(event) => setTyped({ workers: event.currentTarget.value, target })}
          />
        </label>
        <button type="submit" disabled={changes.busy || pause !== null}>
          Scale
        </button>
      </form>
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
