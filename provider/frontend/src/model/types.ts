/** What the server says; the status is the launcher's document, `elastic_runtime.run.status`. */

/** One figure of the headline. */
export type Figure = [name: string, value: string, more?: string];

export interface Series {
  steps: number[];
  times: number[];
  values: number[];
}

export interface Hardware {
  times: number[];
  columns: Record<string, (number | null)[]>;
}

export interface Gpu {
  index: number;
  name: string;
  percent?: number | null;
  memory_bytes?: number | null;
  memory_total_bytes?: number | null;
}

export interface Worker {
  name: string;
  node: string;
  state: string;
  since: string;
  slots: number;
  ranks: number[];
  seconds: number;
  cpu_percent: number | null;
  memory_bytes: number | null;
  memory_limit_bytes?: number | null;
  capacity_type: string | null;
  instance_type: string | null;
  receive_bytes_per_second?: number | null;
  transmit_bytes_per_second?: number | null;
  step_seconds?: number | null;
  step_skew?: number | null;
  gpus?: Gpu[];
}

export interface RunEvent {
  time: string;
  kind: string;
  message: string;
  worker: string | null;
  step: number | null;
  world_size: number | null;
}

/** Why a run has failed. */
export interface Why {
  /** Empty: nobody knows which rank it was. */
  who: string;
  message: string;
  details: string;
  traceback: string;
}

/** Of the steps that the script tells of. Seconds from `updated` on; null: no estimate. */
export interface Progress {
  steps: number;
  percent: number;
  seconds: number | null;
  least: number | null;
  most: number | null;
  basis: string;
  by_script: boolean;
}

/** How a run stands to its deadline and budget. */
export interface Deadline {
  by: string | null;
  /** Dollars. */
  budget: number | null;
  spent: number | null;
  /** Why it cannot be done as things stand; empty: it can, as far as is known. */
  words: string;
  held_until: string | null;
}

export interface Status {
  run: string;
  uid: string;
  phase: string;
  reason: string;
  updated: string;
  started: string | null;
  finished: string | null;
  failure: string | null;
  /** URI of Horovod's. */
  timeline: string | null;
  world_size: number;
  target_size: number;
  generation: number;
  step: number | null;
  progress?: Progress | null;
  metrics: Record<string, number>;
  series: Record<string, Series>;
  throughput: Series;
  sample_throughput: Series;
  hardware: Record<string, Hardware>;
  lost_seconds: Record<string, number>;
  workers: Worker[];
  events: RunEvent[];
  history: { time: string; size: number; generation: number; step: number | null }[];
  asked: { time: string; workers: number }[];
  deadline?: Deadline | null;
  /** Measured, by ranks. */
  paces?: { ranks: number; steps: number; seconds: number }[];
  pause?: { workers: number; since: string | null; refused: string } | null;
}

export interface CostLine {
  capacity_type: string | null;
  instance_type: string | null;
  seconds: number;
  idle_seconds: number;
  price: string | null;
  cost: string | null;
  on_demand_cost: string | null;
  note: string;
}

/** Money is text, as the server has computed it. */
export interface Cost {
  currency: string;
  book: string;
  cost: string;
  idle_cost: string;
  on_demand_cost: string;
  saving: string;
  saving_percent: string | null;
  unpriced_seconds: number;
  lines: CostLine[];
}

export interface TaskIds {
  dag_id: string;
  run_id: string;
  task_id: string;
  map_index: number;
}

export interface TaskPage {
  run: TaskIds & { name: string | null; place: string | null; try_number: number | null; tries: number[] };
  status: Status | null;
  why: Why | null;
  message: string | null;
  limits: { minimum: number; maximum: number } | null;
  live: boolean;
  /** Whether other machines may join the run by hand. */
  joinable: boolean;
  may_edit: boolean;
  cost: Cost | null;
  /** What the viewer has no right to in Airflow. */
  hidden: ("logs" | "results")[];
  links: {
    report: string | null;
    log: string | null;
    checkpoints: string | null;
    timeline: string | null;
    profiles: string[];
  };
}

/** What stands in a report's own page, as `elastic_training.report` writes it. */
export interface Report {
  status: Status;
  cost: Cost | null;
  /** Value by what it is. */
  figures: Record<string, string>;
  why: Why | null;
  /** Sentences about what is not in it. */
  left_out: string[];
}

export interface DagRunTask {
  task_id: string;
  map_index: number;
  try_number: number;
  name: string | null;
  place: string | null;
  phase: string | null;
  world_size: number | null;
  target_size: number | null;
  step: number | null;
  progress?: Progress | null;
  started: string | null;
}

export interface RunRow {
  name: string;
  place: string;
  phase: string;
  reason: string;
  world_size: number;
  target_size: number;
  step: number | null;
  progress?: Progress | null;
  started: string | null;
  finished: string | null;
  updated: string;
  dag_id: string | null;
  run_id: string | null;
  task_id: string | null;
  map_index: number | null;
  cost: string | null;
}

export interface RunsPage {
  total: number;
  runs: RunRow[];
  unreachable: { place: string; message: string }[];
  /** Whether a place is not reached of which the viewer is told nothing. */
  incomplete: boolean;
  pools?: PoolRow[];
}

/** A run that has workers of a pool, or waits for them. */
export interface PoolRun extends TaskIds {
  run: string;
  priority: number;
  has: number;
  wanted: number;
  reason: string;
}

/** A standing pool of workers. */
export interface PoolRow {
  name: string;
  /** Workers that there are at most now. */
  most: number;
  /** Bounds of what may be asked for instead. */
  least: number;
  largest: number;
  free: number;
  /** Workers of runs that the viewer may not see. */
  others: number;
  /** Address on the loopback of the pool's machine; empty: none. */
  notebook: string;
  /** Whether the viewer may resize it. */
  may_edit: boolean;
  runs: PoolRun[];
}

export type CostsBy = "dag" | "team" | "month" | "place";

/** Seconds are of workers, but those lost of the runs; money is text in dollars. */
export interface CostTotal {
  name: string;
  runs: number;
  unpriced: number;
  seconds: number;
  trained_seconds: number;
  idle_seconds: number;
  lost_seconds: number;
  cost: string;
  idle_cost: string;
  lost_cost: string;
}

export interface CostsAnswer {
  by: CostsBy;
  currency: string;
  totals: CostTotal[];
  all: CostTotal;
}
