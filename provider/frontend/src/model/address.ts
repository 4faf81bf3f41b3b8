/** Addresses of pages, as Airflow and these pages write them. Pure. */

/** The ids in an address. Airflow 3.1 writes them as they are: a plus, which most run ids have, is no space there. */
export function idsIn(search: string): URLSearchParams {
  const query = new URLSearchParams(search.replaceAll("+", "%2B"));
  // Of a task that is not mapped, Airflow leaves the place for its index as it stands in the address.
  if (!/^\d+$/.test(query.get("map_index") ?? "")) query.set("map_index", "-1");
  return query;
}

/** Address of a task's page, which {@link idsIn} reads. */
export function taskAddress(ids: URLSearchParams): string {
  return `task?${ids.toString().replaceAll("+", "%20")}`;
}
