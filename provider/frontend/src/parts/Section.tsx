import type { ComponentChildren } from "preact";

export function idOf(title: string): string {
  return `section-${title.toLowerCase().replaceAll(" ", "-")}`;
}

export function Section({ title, children }: { title: string; children: ComponentChildren }) {
  const id = idOf(title);
  return (
    <section class="card" aria-labelledby={id}>
      <h2 id={id}>{title}</h2>
      {children}
    </section>
  );
}
