import { describe, expect, it } from "vitest";
import { idsIn, taskAddress } from "./address";
import { bytes, clock, day, duration, figure, moment, safeLink, whole } from "./format";
import { averaged, isLogarithmic } from "./curve";
import { checkpointsOf, joined, labelsOf, marksOf, signsOf, sizesOf, spanOf, worldsOf } from "./marks";
import { deadlineOf } from "./deadline";
import { doneOf, leftOf, shortOf } from "./progress";
import { rehearsalOf } from "./rehearsal";
import type { RunEvent, Status } from "./types";
import { stepOf, unknownTime } from "./unknown";

const at = (second: number): string => new Date(1_700_000_000_000 + second * 1000).toISOString();
const event = (kind: string, second: number, message = ""): RunEvent => ({
  time: at(second),
  kind,
  message,
  worker: null,
  step: null,
  world_size: null,
});
const status = (more: Partial<Status>): Status =>
  ({ events: [], history: [], asked: [], updated: at(60), finished: null, ...more }) as unknown as Status;

describe("addresses", () => {
  it.each(["manual__2026-01-02T03:04:05+00:00", "with a space", "a%20b&c=d"])("bring %s back", (run_id) => {
    const address = taskAddress(new URLSearchParams({ run_id, map_index: "3" }));
    expect(Object.fromEntries(idsIn(address.slice("task".length)))).toEqual({ run_id, map_index: "3" });
  });
  it("are read as Airflow 3.1 writes them", () => {
    const ids = idsIn("?run_id=manual__2026-01-02T03:04:05+00:00&map_index={MAP_INDEX}");
    expect(Object.fromEntries(ids)).toEqual({ run_id: "manual__2026-01-02T03:04:05+00:00", map_index: "-1" });
  });
});

describe("marks", () => {
  it.each(["standstill", "ranks_differ", "straggler"])("have one for a %s", (kind) => {
    expect(marksOf(status({ events: [event(kind, 5, "rank 2"), event("deadline", 6)] }))).toEqual([
      { at: 1_700_000_005, category: "fault", label: "rank 2" },
    ]);
  });
});

describe("sizes over time", () => {
  it("holds each size until the next one, and the last until now", () => {
    const world = [
      { time: at(0), size: 2, generation: 1, step: 0 },
      { time: at(20), size: 3, generation: 2, step: 9 },
    ];
    const found = sizesOf(status({ history: world, asked: [{ time: at(10), workers: 3 }] }));
    expect(found.times.map((time) => time - 1_700_000_000)).toEqual([0, 10, 20, 60]);
    expect(found.world).toEqual([2, 2, 3, 3]);
    expect(found.asked).toEqual([null, 3, 3, 3]);
  });
  it("is empty before anything is known but the time", () => {
    expect(sizesOf(status({}))).toEqual({ times: [1_700_000_060], world: [null], asked: [null] });
  });
  it("ends with the run", () => {
    expect(sizesOf(status({ finished: at(30) })).times).toEqual([1_700_000_030]);
  });
});

describe("what nobody knows", () => {
  it("is the step of a run that has trained and told none", () => {
    expect(stepOf({ step: null, started: null })).toBe("–");
    expect(stepOf({ step: null, started: at(0) })).toBe("unknown");
    expect(stepOf({ step: 1200, started: at(0) })).toBe("1,200");
  });
  it("is time, too, and is said in words", () => {
    const tells = status({ step: 1, started: at(0), lost_seconds: { starting: 1, checkpoint: 0 } });
    expect(unknownTime(tells)).toBe("");
    const silent = unknownTime(status({ step: null, started: at(0), lost_seconds: { starting: 1 } }));
    expect(silent).toContain("reports no step");
    expect(silent).toContain("own checkpoints");
  });
});

describe("progress", () => {
  const progress = { steps: 3000, percent: 40, seconds: 720.4, least: 45.2, most: 5400, basis: "measured with 2 ranks", by_script: true };
  it("is percent, and a time with its interval", () => {
    const run = { progress, updated: at(0) };
    expect(doneOf(run)).toBe("40 % of 3,000");
    expect(shortOf(run)).toBe("40 %, 12:00 left");
    expect(leftOf(run)).toEqual([
      "12:00",
      "45 s to 1:30:00, until 2023-11-14 22:25 UTC; measured with 2 ranks",
    ]);
  });
  it("says why there is no time, and nothing of a run that is over", () => {
    const none = { ...progress, seconds: null, least: null, most: null };
    expect(leftOf({ progress: { ...none, basis: "no pace is measured yet" }, updated: at(0) })).toEqual([
      "–",
      "no pace is measured yet",
    ]);
    expect(leftOf({ progress: { ...none, basis: "" }, updated: at(0) })).toBeNull();
    expect(shortOf({ progress: none })).toBe("40 %");
  });
  it("is nothing where the script does not tell its steps", () => {
    expect([doneOf({}), shortOf({ progress: null }), leftOf({ updated: at(0) })]).toEqual(["", "", null]);
  });
});

describe("marks", () => {
  it("leaves checkpoints and times that are none to the list", () => {
    const broken = { ...event("lost", 0), time: "no time" };
    const found = marksOf(status({ events: [event("checkpoint", 1), event("notice", 2, "taken"), broken] }));
    expect(found).toEqual([{ at: 1_700_000_002, category: "notice", label: "taken" }]);
  });
});

describe("marks and the list of events", () => {
  it("have the same numbers; a checkpoint is a triangle", () => {
    const events = [event("started", 0), event("scaled", 1), event("checkpoint", 2), event("lost", 3)];
    expect([...signsOf(events).values()]).toEqual(["", "1", "▲", "2"]);
    expect(marksOf(status({ events })).length).toBe(2);
    expect(checkpointsOf(status({ events }))).toEqual([1_700_000_002]);
  });
  it("share a number where they are crowded", () => {
    const found = labelsOf([10, 10, 11, 50, null, 99, 100, 100], 40);
    expect(found.map(({ text }) => text)).toEqual(["1–3", "4", "6–8"]);
    expect(found.map(({ x }) => x)).toEqual([10, 50, 99]);
  });
  it("tell where worlds began, by step", () => {
    const history = [1, 2].map((generation) => ({ time: at(0), size: 2, generation, step: generation === 1 ? null : 7 }));
    expect(worldsOf(status({ history })).map((mark) => mark.at)).toEqual([7]);
  });
});

describe("the time that is drawn", () => {
  it("is that from the first that is known to the end", () => {
    const asked = [{ time: at(-5), workers: 2 }];
    expect(spanOf(status({ asked, started: at(3), finished: at(50) }))).toEqual([1_699_999_995, 1_700_000_050]);
    expect(spanOf(status({ started: null, events: [event("lost", 70)] }))).toEqual([1_700_000_060, 1_700_000_070]);
  });
  it("is never nothing", () => {
    expect(spanOf(status({ started: null }))).toEqual([1_700_000_060, 1_700_000_061]);
  });
});

describe("curves", () => {
  it("are on a logarithmic scale from a ratio of 20 on", () => {
    expect(isLogarithmic([0.1, null, 2])).toBe(true);
    expect(isLogarithmic([1, 19])).toBe(false);
    expect(isLogarithmic([0, 100])).toBe(false);
    expect(isLogarithmic([])).toBe(false);
  });
  it("are averaged over neighbors on both sides, and gaps stay", () => {
    expect(averaged([1, 4, 1, null, 3], false)).toEqual([1, 2, 2.25, null, 3]);
    expect(averaged([1, 100, 1e4], true).map((each) => Math.round(each ?? 0))).toEqual([1, 100, 10_000]);
  });
});

describe("several columns on one axis", () => {
  it("leaves gaps where a worker said nothing", () => {
    const found = joined([
      { times: [1, 3], values: [10, 30] },
      { times: [2, 3], values: [null, 33] },
    ]);
    expect(found).toEqual({
      times: [1, 2, 3],
      values: [
        [10, null, 30],
        [null, null, 33],
      ],
    });
  });
});

describe("figures", () => {
  it.each([
    [duration(9.94), "9.9 s"],
    [duration(61), "1:01"],
    [duration(3723.4), "1:02:03"],
    [duration(null), "–"],
    [bytes(999), "999 B"],
    [bytes(1_500_000), "1.50 MB"],
    [bytes(null), "–"],
    [bytes(2048, "/s"), "2.05 kB/s"],
    [figure(0.123456), "0.1235"],
    [figure(12345.6), "12,350"],
    [figure(Number.NaN), "–"],
    [whole(1234567), "1,234,567"],
    [moment("2026-11-22T10:00:00.123Z"), "2026-11-22 10:00:00"],
    [moment("<b>"), "–"],
    [clock(1_700_000_000), "22:13:20"],
    [clock(1e300), "–"],
    [day(1_700_000_000), "11-14"],
  ])("%s", (found, wanted) => expect(found).toBe(wanted));
});

describe("links", () => {
  it.each(["javascript:alert(1)", "data:text/html,x", "s3://bucket/run", "file:///etc/passwd"])("refuses %s", (address) => {
    globalThis.location = { href: "https://airflow.example/elastic-training/task" } as Location;
    expect(safeLink(address)).toBeNull();
  });
  it("takes Airflow's own and other web addresses", () => {
    globalThis.location = { href: "https://airflow.example/elastic-training/task" } as Location;
    expect(safeLink("report?try=1")).toBe("https://airflow.example/elastic-training/report?try=1");
    expect(safeLink("https://logs.example/x")).toBe("https://logs.example/x");
  });
});

describe("a deadline", () => {
  const progress = { steps: 3000, percent: 40, seconds: 720, least: 45, most: 5400, basis: "", by_script: true };
  const deadline = { by: at(3600), budget: 40, spent: 12.4, words: "", held_until: null };
  it("says whether the run is on course, and what is left of the budget", () => {
    expect(deadlineOf(status({ deadline, progress }))).toEqual([
      ["Deadline", "2023-11-14 23:13 UTC", "on course"],
      ["Spent on workers", "12.40 $", "27.60 $ left of 40.00 $"],
    ]);
    const held = { ...deadline, by: at(90), budget: null, spent: null, held_until: at(7200) };
    expect(deadlineOf(status({ deadline: held, progress }))).toEqual([
      ["Deadline", "2023-11-14 22:14 UTC", "not yet on course; size kept until 00:13 UTC"],
    ]);
  });
  it("says what cannot be done, beside the budget if there is no time", () => {
    const late = { ...deadline, words: "it ends at 23:40; that is after 23:13" };
    expect(deadlineOf(status({ deadline: late, progress }))[0]?.[2]).toBe(late.words);
    const costly = { ...deadline, by: null, words: "that is more than the budget" };
    expect(deadlineOf(status({ deadline: costly }))).toEqual([
      ["Spent on workers", "12.40 $", "27.60 $ left of 40.00 $; that is more than the budget"],
    ]);
  });
  it.each([
    [3000, "succeeded", "succeeded in time"],
    [4000, "failed", "failed after it"],
  ])("compares the end, %i s, of a run that is over", (end, phase, words) => {
    expect(deadlineOf(status({ deadline, phase, finished: at(end) }))[0]?.[2]).toBe(words);
  });
  it("is not shown where there is none, and not judged without an estimate", () => {
    expect(deadlineOf(status({}))).toEqual([]);
    expect(deadlineOf(status({ deadline }))[0]?.[2]).toBe("not known yet");
  });
});

describe("a rehearsal", () => {
  const progress = { steps: 3000, percent: 40, seconds: null, least: null, most: null, basis: "", by_script: true };
  const workers = [{ slots: 2, instance_type: null }, { slots: 2, instance_type: "g4dn.xlarge" }] as Status["workers"];
  const paces = [
    { ranks: 4, steps: 10, seconds: 5 },
    { ranks: 8, steps: 300, seconds: 100 },
  ];
  const run = status({ progress, workers, paces, target_size: 4 });
  it("is a command with what was measured with the size that has trained longest", () => {
    expect(rehearsalOf(run, { minimum: 1, maximum: 16 })).toBe(
      "elastic-training rehearse --steps 3000 --step-seconds 0.333 --min 1 --start 4 --max 16 --market g4dn.xlarge",
    );
  });
  it("has nothing in it that a shell would run", () => {
    const label = [{ slots: 1, instance_type: "$(reboot)" }] as Status["workers"];
    expect(rehearsalOf({ ...run, workers: label }, null)).toMatch(/--min 8 --start 8 --max 8 --market MACHINE$/);
  });
  it("needs a pace and a number of steps", () => {
    expect(rehearsalOf(status({ progress, workers }), null)).toBeNull();
    expect(rehearsalOf(status({ paces, workers }), null)).toBeNull();
  });
});
