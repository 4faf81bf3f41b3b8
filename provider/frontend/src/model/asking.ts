import { useState } from "preact/hooks";

export interface Asking {
  /** Ask the server for something; `done` is said if it agrees. */
  ask: (change: () => Promise<void>, done: string) => void;
  busy: boolean;
  /** What came of it. */
  said: string;
}

/** @param after called when the server has answered */
export function useAsking(after: () => void): Asking {
  const [busy, setBusy] = useState(false);
  const [said, setSaid] = useState("");
  async function asked(change: () => Promise<void>, done: string): Promise<void> {
    setBusy(true);
    try {
      await change();
      setSaid(done);
    } catch (problem) {
      setSaid(String((problem as Error).message));
    }
    setBusy(false);
    after();
  }
  return { ask: (change, done) => void asked(change, done), busy, said };
}
