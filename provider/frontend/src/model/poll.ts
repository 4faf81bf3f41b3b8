import { useEffect, useRef, useState } from "preact/hooks";
import { ServerSays } from "./api";

const AGAIN = 2000;
const AT_MOST = 30_000; // Milliseconds between two questions to a server that fails.

export interface Polled<T> {
  value: T | null;
  /** Why the newest answer is missing. */
  error: string | null;
  /** Milliseconds since 1970 of the newest answer. */
  heard: number | null;
  refresh: () => void;
}

/**
 * Ask again and again while the page is seen and `live` says so; more seldom while the server fails.
 *
 * @param key what is asked for: another one begins anew
 */
export function usePolled<T>(key: string, fetcher: () => Promise<T>, live: (value: T) => boolean): Polled<T> {
  const [state, setState] = useState<{ value: T | null; error: string | null; heard: number | null }>({
    value: null,
    error: null,
    heard: null,
  });
  const again = useRef<() => void>(() => undefined);
  useEffect(() => {
    let [ended, asking, failures] = [false, false, 0];
    let timer: ReturnType<typeof setTimeout> | undefined;
    setState({ value: null, error: null, heard: null });

    async function look(): Promise<void> {
      clearTimeout(timer);
      if (asking || ended) return;
      asking = true;
      let goOn = true;
      try {
        const value = await fetcher();
        failures = 0;
        goOn = live(value);
        if (!ended) setState({ value, error: null, heard: Date.now() });
      } catch (problem) {
        failures += 1;
        // What is refused now is refused in two seconds as well.
        goOn = !(problem instanceof ServerSays && problem.status >= 400 && problem.status < 500);
        if (!ended) setState((before) => ({ ...before, error: String((problem as Error).message) }));
      }
      asking = false;
      if (goOn && !ended && !document.hidden) {
        timer = setTimeout(() => void look(), Math.min(AT_MOST, AGAIN * 2 ** failures));
      }
    }

    const seen = (): void => {
      if (!document.hidden) void look();
    };
    again.current = () => void look();
    document.addEventListener("visibilitychange", seen);
    void look();
    return () => {
      ended = true;
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", seen);
    };
  }, [key]);
  return { ...state, refresh: () => again.current() };
}
