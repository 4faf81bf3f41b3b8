import type { ComponentChildren } from "preact";
import { moment } from "../model/format";
import type { Report, Status } from "../model/types";
import { Metrics } from "../parts/Curves";
import { Events } from "../parts/Events";
import { Failure } from "../parts/Failure";
import { HardwareCharts } from "../parts/HardwareCharts";
import { Headline } from "../parts/Headline";
import { Overview } from "../parts/Overview";
import { idOf, Section } from "../parts/Section";
import { CostTable, LostTime } from "../parts/Spent";
import { Workers } from "../parts/Workers";

/** A run as it was, of a document within this page: nobody is asked for anything. */
export function ReportPage({ report }: { report: Report }) {
  const { status, why } = report;
  const sections = sectionsOf(report);
  return (
    <>
      <header class="top">
        <h1>Training run {status.run}</h1>
        <p class="where">
          <span>{times(status)}</span>
          <span>
            uid <code>{status.uid}</code>
          </span>
          {status.timeline && (
            <span>
              timeline <code>{status.timeline}</code>
            </span>
          )}
        </p>
      </header>
      <main>
        {why && <Failure why={why} />}
        {report.left_out.map((each) => (
          <p class="remark" key={each}>
            {each}
          </p>
        ))}
        <Headline status={status} figures={Object.entries(report.figures)} />
        <nav class="contents" aria-label="Contents">
          {sections.map(([title]) => (
            <a key={title} href={`#${idOf(title)}`}>
              {title}
            </a>
          ))}
        </nav>
        {sections.map(([title, shown]) => (
          <Section key={title} title={title}>
            {shown}
          </Section>
        ))}
      </main>
    </>
  );
}

function sectionsOf({ status, cost }: Report): [string, ComponentChildren][] {
  const rates = [status.throughput, status.sample_throughput, ...Object.values(status.series)];
  const all: [string, boolean, ComponentChildren][] = [
    ["Over time", true, <Overview status={status} />],
    ["Time lost", Object.values(status.lost_seconds).some((each) => each > 0), <LostTime status={status} />],
    ["Metrics", rates.some(({ values }) => values.length > 0), <Metrics status={status} />],
    ["Hardware", Object.keys(status.hardware).length > 0, <HardwareCharts status={status} />],
    ["Cost", cost !== null, <CostTable cost={cost} />],
    ["Events", status.events.length > 0, <Events events={status.events} />],
    ["Workers", status.workers.length > 0, <Workers workers={status.workers} notice={null} />],
  ];
  return all.filter(([, there]) => there).map(([title, , shown]) => [title, shown]);
}

function times({ started, finished, updated }: Status): string {
  const begun = started === null ? "It has not trained" : `Trained from ${moment(started)} UTC`;
  return finished === null ? `${begun}, as of ${moment(updated)} UTC` : `${begun}, ended ${moment(finished)} UTC`;
}
