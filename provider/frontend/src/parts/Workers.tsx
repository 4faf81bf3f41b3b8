import { bytes, duration, figure, words } from "../model/format";
import type { Gpu, Worker } from "../model/types";

const GONE = ["left", "lost"];

interface Props {
  workers: Worker[];
  /** Send a drill notice; null: this person may not, or the run is over. */
  notice: ((worker: string) => void) | null;
}

export function Workers({ workers, notice }: Props) {
  if (!workers.length) return <p class="empty">No worker has come yet.</p>;
  const sorted = [...workers].sort((a, b) => Number(GONE.includes(a.state)) - Number(GONE.includes(b.state)));
  return (
    <div class="scrolls" tabIndex={0} role="region" aria-label="Table of workers">
      <table class="workers">
        <thead>
          <tr>
            {["Worker", "Rank", "State", "Node", "Machine", "CPU", "Memory", "Network in / out", "GPUs", "Here for"].map(
              (name) => (
                <th scope="col" key={name}>
                  {name}
                </th>
              ),
            )}
            {notice && <th scope="col">Drill</th>}
          </tr>
        </thead>
        <tbody>
          {sorted.map((worker) => (
            <Row key={worker.name} {...{ worker, notice }} />
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Row({ worker, notice }: { worker: Worker; notice: Props["notice"] }) {
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
      <td>{worker.node}</td>
      <td>{machine || "–"}</td>
      <td>{worker.cpu_percent === null ? "–" : `${figure(worker.cpu_percent)} %`}</td>
      <td>{bytes(worker.memory_bytes)}</td>
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

function gpu(each: Gpu): string {
  const use = each.percent == null ? "" : ` ${figure(each.percent)} %`;
  const memory = each.memory_bytes == null ? "" : ` ${bytes(each.memory_bytes)}`;
  const total = each.memory_total_bytes == null ? "" : ` of ${bytes(each.memory_total_bytes)}`;
  return `${each.index}: ${each.name}${use}${memory}${total}`;
}
