import { render } from "preact";
import { idsIn } from "./model/address";
import type { Report } from "./model/types";
import { DagRunPage } from "./pages/DagRunPage";
import { ReportPage } from "./pages/ReportPage";
import { RunsPage } from "./pages/RunsPage";
import { TaskPage } from "./pages/TaskPage";
import { followTheme } from "./theme";
import "./style.css";

function Page() {
  // A report is a file that has its run within itself; Python's elastic_training.report writes it.
  const report = document.getElementById("report")?.textContent;
  if (report) return <ReportPage report={JSON.parse(report) as Report} />;
  const query = idsIn(location.search);
  const last = location.pathname.replace(/\/+$/, "").split("/").at(-1);
  if (last === "task") return <TaskPage query={query} />;
  if (last === "dag-run") return <DagRunPage query={query} />;
  return <RunsPage />;
}

followTheme();
const place = document.getElementById("page");
if (place) render(<Page />, place);
