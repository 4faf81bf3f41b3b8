import { useState } from "preact/hooks";
import { rehearsalOf, UNKNOWN_MACHINE } from "../model/rehearsal";
import type { Status, TaskPage } from "../model/types";

/** A command to copy: a rehearsal takes minutes of a processor, and markets' files are not where Airflow runs. */
export function Rehearsal({ status, limits }: { status: Status; limits: TaskPage["limits"] }) {
  const [said, setSaid] = useState("");
  const command = rehearsalOf(status, limits);
  if (command === null) {
    return <p class="empty">There is no command yet: no step time is measured, or the script does not tell its steps.</p>;
  }
  async function copy(text: string): Promise<void> {
    try {
      await navigator.clipboard.writeText(text);
      setSaid("copied");
    } catch {
      setSaid("The browser does not allow it: select the command instead");
    }
  }
  return (
    <>
      <p>
        This command replays the task on past spot markets, with the step time of this run. It prints when the training
        would end, what it would cost, and which numbers of workers would be better.
        {command.endsWith(` ${UNKNOWN_MACHINE}`) && ` Write the machine type in the place of ${UNKNOWN_MACHINE}.`}
      </p>
      <pre class="command" tabIndex={0} aria-label="Command that rehearses this task">
        {command}
      </pre>
      <p class="copying">
        <button type="button" onClick={() => void copy(command)}>
          Copy the command
        </button>{" "}
        <output aria-live="polite">{said}</output>
      </p>
    </>
  );
}
