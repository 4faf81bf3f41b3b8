import type { Why } from "../model/types";

/** The rank that failed first: of the others most fail because of it. */
export function Failure({ why }: { why: Why }) {
  return (
    <section class="failure" aria-labelledby="failure-title">
      <h2 id="failure-title">{why.who ? `${why.who} failed first` : "Why it failed"}</h2>
      <p>
        {why.message}
        {why.details && ` (${why.details})`}
      </p>
      {why.traceback && (
        <pre tabIndex={0} aria-label="Traceback">
          {why.traceback}
        </pre>
      )}
    </section>
  );
}
