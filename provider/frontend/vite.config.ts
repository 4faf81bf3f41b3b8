import { createHash } from "node:crypto";
import { readFileSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { defineConfig, type Plugin } from "vite";

/** What the page is made of, in the order of the digest: tests/unit/provider/test_frontend_assets.py reads the same. */
function sources(): string[] {
  const below = readdirSync("src", { recursive: true, withFileTypes: true });
  const files = below.filter((entry) => entry.isFile()).map((entry) => join(entry.parentPath, entry.name));
  return [...files, "index.html", "package-lock.json", "package.json", "tsconfig.json", "vite.config.ts"].sort();
}

/** Beside the assets, the digest of their sources: a test that has no node compares it. */
function builtFrom(): Plugin {
  return {
    name: "built-from",
    generateBundle() {
      const digest = createHash("sha256");
      for (const name of sources()) {
        const content = readFileSync(name);
        digest.update(`${name}\0${content.length}\0`).update(content);
      }
      this.emitFile({ type: "asset", fileName: "built-from.txt", source: `${digest.digest("hex")}\n` });
    },
  };
}

export default defineConfig({
  base: "./",
  // Relative to the page, which lies beside the folder: Airflow may be served below a path of its own.
  experimental: { renderBuiltUrl: (name, { hostType }) => (hostType === "html" ? `static/${name}` : { relative: true }) },
  plugins: [builtFrom()],
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  build: {
    outDir: "../src/elastic_training/static",
    emptyOutDir: true,
    assetsInlineLimit: 0,
    modulePreload: false,
    rollupOptions: {
      output: { entryFileNames: "page.js", assetFileNames: "page[extname]", chunkFileNames: "[name].js" },
    },
  },
});
