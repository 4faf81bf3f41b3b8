import { bytes, duration, figure, words } from "../model/format";
import type { Gpu, Worker } from "../model/types";

const GONE = ["left", "lost"];
const OWN_STEP = "Own step";
const APART = "Seconds a step, apart from waiting for other ranks; and how many times as long as the other workers take";
const NETWORK = "Network in / out";

interface Props {
  workers: Worker[];
  /** Send a drill notice; null: this person may not, or the run is over. */
  notice: ((worker: string) => void) | null;
}

export function Workers({ workers, notice }: Props) {
  if (!workers.length) return <p class="empty">No worker has come yet.</p>;
  const timed = workers.some((each) => each.step_seconds != null);
  const columns = ["Worker", "Rank", "State", ...(timed ? [OWN_STEP] : []), "Node", "Machine", "CPU", "Memory", NETWORK, "GPUs", "Here for"];
  const sorted = [...workers].sort((a, b) => Number(GONE.includes(a.state)) - Number(GONE.includes(b.state)));
  return (
    <div class="scrolls" tabIndex={0} role="region" aria-label="Table of workers">
      <table class="workers">
        <thead>
          <tr>
            {columns.map((name) => (
              <th scope="col" key={name} title={name === OWN_STEP ? APART : undefined}>
                {name}
              </th>
            ))}
            {notice && <th scope="col">Drill</th>}
          </tr>
        </thead>
        <tbody>
          {sorted.map((worker) => (
            <Row key={worker.name} {...{ worker, notice, timed }} />
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Row({ worker, notice, timed }: { worker: Worker; notice: Props["notice"]; timed: boolean }) {
  const gone = GONE.includes(worker.state);
  const machine = [worker.instance_type, worker.capacity_type].filter(Boolean).join(", ");
  const network = [worker.receive_bytes_per_second, worker.transmit_bytes_per_second];
  return (
    <tr class={gone ? "gone" : ""}>
      <th scope="row">{worker.name}</th>
      <td>{worker.ranks.join(", ") || "–"}</td>
      <td>
        <span class={`state ${worker.state}`}>{words(worker.state)}</span>
      </td>
      {timed && <td>{ownStep(worker)}</td>}
      <td>{worker.node}</td>
      <td>{machine || "–"}</td>
      <td>{worker.cpu_percent === null ? "–" : `${figure(worker.cpu_percent)} %`}</td>
      <td>
        {bytes(worker.memory_bytes)}
        {ofAll(worker.memory_limit_bytes)}
      </td>
      <td>{network.some((each) => each != null) ? network.map((each) => bytes(each, "/s")).join(" / ") : "–"}</td>
      <td>{worker.gpus?.map(gpu).join("; ") || "–"}</td>
      <td>{duration(worker.seconds)}</td>
      {notice && (
        <td>
          {!gone && worker.state !== "leaving" && (
            <button type="button" onClick={() => notice(worker.name)} aria-label={`Send a reclaim notice to ${worker.name}`}>
              Notice
            </button>
          )}
        </td>
      )}
    </tr>
  );
}

function ownStep(worker: Worker): string {
  if (worker.step_seconds == null) return "–";
  const skew = worker.step_skew == null ? "" : ` (×${worker.step_skew.toFixed(1)})`;
  return `${figure(Number(worker.step_seconds.toPrecision(2)))} s${skew}`;
}

function gpu(each: Gpu): string {
  const use = each.percent == null ? "" : ` ${figure(each.percent)} %`;
  const memory = each.memory_bytes == null ? "" : ` ${bytes(each.memory_bytes)}`;
  return `${each.index}: ${each.name}${use}${memory}${ofAll(each.memory_total_bytes)}`;
}

function ofAll(most: number | null | undefined): string {
  return most == null ? "" : ` of ${bytes(most)}`;
}
