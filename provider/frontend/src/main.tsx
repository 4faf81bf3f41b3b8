import { render } from "preact";
import { idsIn } from "./model/address";
import { DagRunPage } from "./pages/DagRunPage";
import { RunsPage } from "./pages/RunsPage";
import { TaskPage } from "./pages/TaskPage";
import { followTheme } from "./theme";
import "./style.css";

function Page() {
  const query = idsIn(location.search);
  const last = location.pathname.replace(/\/+$/, "").split("/").at(-1);
  if (last === "task") return <TaskPage query={query} />;
  if (last === "dag-run") return <DagRunPage query={query} />;
  return <RunsPage />;
}

followTheme();
const place = document.getElementById("page");
if (place) render(<Page />, place);
