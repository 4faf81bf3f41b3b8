import { useMemo, useState } from "preact/hooks";
import { moment, whole, words } from "../model/format";
import { categoryOf, signsOf } from "../model/marks";
import type { RunEvent } from "../model/types";

/** Newest first, by kind and by words. */
export function Events({ events }: { events: RunEvent[] }) {
  const [kind, setKind] = useState("");
  const [text, setText] = useState("");
  const kinds = [...new Set(events.map((event) => event.kind))].sort();
  const signs = useMemo(() => signsOf(events), [events]);
  const wanted = text.toLowerCase();
  const shown = events.filter(
    (event) =>
      (!kind || event.kind === kind) &&
      (!wanted || `${event.message} ${event.worker ?? ""}`.toLowerCase().includes(wanted)),
  );
  if (!events.length) return <p class="empty">Nothing has happened yet.</p>;
  return (
    <>
      <form class="filters" role="search" aria-label="Events" onSubmit={(event) => event.preventDefault()}>
        <label>
          Kind
          <select value={kind} onChange={(event) => setKind(event.currentTarget.value)}>
            <option value="">all</option>
            {kinds.map((each) => (
              <option key={each} value={each}>
                {words(each)}
              </option>
            ))}
          </select>
        </label>
        <label>
          Text
          <input type="search" value={text} onInput={(event) => setText(event.currentTarget.value)} />
        </label>
        <output>
          {shown.length} of {events.length}
        </output>
      </form>
      <div class="scrolls tall" tabIndex={0} role="region" aria-label="Table of events">
        <table>
          <thead>
            <tr>
              <th scope="col">Mark</th>
              <th scope="col">Time (UTC)</th>
              <th scope="col">What</th>
              <th scope="col">Step</th>
              <th scope="col">In words</th>
            </tr>
          </thead>
          <tbody>
            {[...shown].reverse().map((event, at) => (
              <tr key={`${event.time} ${at}`}>
                <td>{signs.get(event)}</td>
                <td class="time">{moment(event.time)}</td>
                <td class="what">
                  <span class={`swatch ${categoryOf(event)}`} aria-hidden="true" />
                  {words(event.kind)}
                </td>
                <td>{whole(event.step)}</td>
                <td>{event.message}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </>
  );
}
