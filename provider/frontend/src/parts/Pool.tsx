import { resizePool } from "../model/api";
import { useAsking } from "../model/asking";
import type { PoolRow } from "../model/types";
import { RunLink } from "./RunLink";
import { SizeForm } from "./SizeForm";

interface Props {
  pool: PoolRow;
  /** Called when the pool is another one. */
  after: () => void;
}

/** Who has the workers of a standing pool, and why. */
export function Pool({ pool, after }: Props) {
  const { ask, busy, said } = useAsking(after);
  const name = `Pool ${pool.name}`;
  const used = pool.runs.reduce((sum, each) => sum + each.has, pool.others);
  return (
    <section aria-label={name}>
      <h2>{name}</h2>
      <p>
        {used} of {pool.most} workers train, {pool.free} are warm and free
        {pool.others ? `; runs that you may not see have ${pool.others}` : ""}
        {pool.notebook ? `; on that machine, its notebook is at ${pool.notebook}` : ""}
      </p>
      {pool.may_edit && (
        <div class="controls">
          <SizeForm
            label="Workers at most"
            button="Resize"
            size={pool.most}
            least={pool.least}
            most={pool.largest}
            disabled={busy}
            ask={(most) => ask(() => resizePool(pool.name, most), `${name} has ${most} workers at most`)}
          />
          <output aria-live="polite">{said}</output>
        </div>
      )}
      {pool.runs.length > 0 && (
        <div class="scrolls" tabIndex={0} role="region" aria-label={`Runs in ${name}`}>
          <table>
            <thead>
              <tr>
                {["Run", "Priority", "Has", "Wishes", "Why"].map((title) => (
                  <th scope="col" key={title}>
                    {title}
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {pool.runs.map((each) => (
                <tr key={each.run}>
                  <th scope="row">
                    <RunLink ids={each} name={each.run} />
                  </th>
                  <td>{each.priority}</td>
                  <td>{each.has}</td>
                  <td>{each.wanted}</td>
                  <td>{each.reason || (each.has >= each.wanted ? "has what it wishes for" : "others are before it")}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </section>
  );
}
