import type { FirstFailure } from "../model/types";

/** The rank that failed first: of the others most fail because of it. */
export function Failure({ failure }: { failure: FirstFailure }) {
  const who = failure.rank === null ? "A rank" : `Rank ${failure.rank}`;
  return (
    <section class="failure" aria-labelledby="failure-title">
      <h2 id="failure-title">
        {who} on {failure.worker} failed first
      </h2>
      <p>
        {failure.message}
        {failure.step !== null && ` (at step ${failure.step})`}
      </p>
      {failure.traceback && (
        <pre tabIndex={0} aria-label="Traceback">
          {failure.traceback}
        </pre>
      )}
    </section>
  );
}
