import { duration, words } from "../model/format";
import { spanOf } from "../model/marks";
import type { Cost, Status } from "../model/types";
import { unknownTime } from "../model/unknown";
import { money } from "./Headline";

/** Where time went that was no training. */
export function LostTime({ status }: { status: Status }) {
  const causes = Object.entries(status.lost_seconds).sort(([, a], [, b]) => b - a);
  if (!causes.length) return <p class="empty">Not known: the launcher of this run does not count it.</p>;
  const unknown = unknownTime(status);
  const [start, end] = spanOf(status);
  const percent = (seconds: number): string => `${Math.min(100, (100 * seconds) / (end - start)).toFixed(1)} %`;
  const most = Math.max(...causes.map(([, seconds]) => seconds), 1e-9);
  return (
    <>
      <table class="bars">
        <tbody>
          {causes.map(([cause, seconds]) => (
            <tr key={cause}>
              <th scope="row">{words(cause)}</th>
              <td>{duration(seconds)}</td>
              <td>{percent(seconds)}</td>
              <td aria-hidden="true">
                <meter min={0} max={most} value={seconds} />
              </td>
            </tr>
          ))}
        </tbody>
      </table>
      {unknown && <p class="empty">{unknown}</p>}
    </>
  );
}

export function CostTable({ cost }: { cost: Cost | null }) {
  if (cost === null) return <p class="empty">There are no prices: the task has no price_book.</p>;
  return (
    <>
      <p>
        {money(cost, cost.cost)}, of it {money(cost, cost.idle_cost)} idle; on demand it had been{" "}
        {money(cost, cost.on_demand_cost)}
        {cost.saving_percent === null ? "" : `, so ${cost.saving_percent} % are saved`}. Prices: {cost.book}.
      </p>
      <div class="scrolls" tabIndex={0} role="region" aria-label="Cost by kind of machine">
        <table>
          <thead>
            <tr>
              {["Machine", "Capacity", "Time", "Idle", "Price an hour", "Cost", "On demand", "Note"].map((name) => (
                <th scope="col" key={name}>
                  {name}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {cost.lines.map((line, at) => (
              <tr key={at}>
                <th scope="row">{line.instance_type ?? "not known"}</th>
                <td>{line.capacity_type ?? "not known"}</td>
                <td>{duration(line.seconds)}</td>
                <td>{duration(line.idle_seconds)}</td>
                <td>{line.price ?? "–"}</td>
                <td>{line.cost ?? "–"}</td>
                <td>{line.on_demand_cost ?? "–"}</td>
                <td>{line.note}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </>
  );
}
