import { taskAddress } from "../model/address";
import type { TaskIds } from "../model/types";

interface Props {
  /** Ids are null for a run without a task. */
  ids: { [name in keyof TaskIds]: TaskIds[name] | null };
  name: string;
}

/** A run by its task, with a link to its page. */
export function RunLink({ ids, name }: Props) {
  const { dag_id, run_id, task_id } = ids;
  if (dag_id === null || run_id === null || task_id === null) return <>{name}</>;
  const query = new URLSearchParams({ dag_id, run_id, task_id, map_index: String(ids.map_index ?? -1) });
  return (
    <a href={taskAddress(query)}>
      {dag_id} · {task_id}
      {(ids.map_index ?? -1) >= 0 ? ` [${ids.map_index}]` : ""}
      <small>{name}</small>
    </a>
  );
}
