import { taskAddress } from "../model/address";
import { fetchDagRun } from "../model/api";
import { whole, words } from "../model/format";
import { usePolled } from "../model/poll";
import { shortOf } from "../model/progress";
import { stepOf } from "../model/unknown";

/** All training tasks of one DAG run. */
export function DagRunPage({ query }: { query: URLSearchParams }) {
  const polled = usePolled(query.toString(), () => fetchDagRun(query), () => true);
  const tasks = polled.value;
  if (!tasks?.length) {
    const words = tasks ? "No task of this DAG run trains." : (polled.error ?? "Looking for runs…");
    return (
      <main>
        <p class="empty" role="status">{words}</p>
      </main>
    );
  }
  return (
    <main>
      <h1>Training tasks</h1>
      <div class="scrolls" tabIndex={0} role="region" aria-label="Training tasks">
        <table>
          <thead>
            <tr>
              {["Task", "Phase", "World size", "Asked for", "Step", "Place"].map((name) => (
                <th scope="col" key={name}>
                  {name}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {tasks.map((task) => {
              const ids = new URLSearchParams(query);
              ids.set("task_id", task.task_id);
              ids.set("map_index", String(task.map_index));
              return (
                <tr key={`${task.task_id} ${task.map_index}`}>
                  <th scope="row">
                    <a href={taskAddress(ids)}>
                      {task.task_id}
                      {task.map_index >= 0 ? ` [${task.map_index}]` : ""}
                    </a>
                  </th>
                  <td>
                    {task.phase ? <span class={`phase ${task.phase}`}>{words(task.phase)}</span> : "no run yet"}
                  </td>
                  <td>{whole(task.world_size)}</td>
                  <td>{whole(task.target_size)}</td>
                  <td>
                    {stepOf(task)} <small>{shortOf(task)}</small>
                  </td>
                  <td>{task.place ?? "–"}</td>
                </tr>
              );
            })}
          </tbody>
        </table>
      </div>
    </main>
  );
}
