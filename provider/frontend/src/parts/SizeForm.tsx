import { useState } from "preact/hooks";

interface Props {
  label: string;
  button: string;
  /** What it is now. */
  size: number;
  least: number;
  most?: number | undefined;
  disabled: boolean;
  ask: (size: number) => void;
}

/** A number of workers to ask for. What is typed counts until the size is another one. */
export function SizeForm({ label, button, size, least, most, disabled, ask }: Props) {
  const [typed, setTyped] = useState({ text: String(size), size });
  const text = typed.size === size ? typed.text : String(size);
  return (
    <form
      onSubmit={(event) => {
        event.preventDefault();
        ask(Number(text));
      }}
    >
      <label>
        {label}
        <input
          type="number"
          required
          step={1}
          min={least}
          {...(most === undefined ? {} : { max: most })}
          value={text}
          onInput={(event) => setTyped({ text: event.currentTarget.value, size })}
        />
      </label>
      <button type="submit" disabled={disabled}>
        {button}
      </button>
    </form>
  );
}
