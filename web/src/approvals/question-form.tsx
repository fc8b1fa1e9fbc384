import { useState } from "react";
import { Button } from "@/components/button";
import { SafeText } from "@/text/safe-text-view";
import type { AgentQuestion } from "./approval-request";

interface QuestionFormProps {
  questions: readonly AgentQuestion[];
  isBusy: boolean;
  isInert: boolean;
  onAnswer: (answers: Record<string, string>) => void;
  onSkip: () => void;
}

/** Options for each question, and a field for another answer. */
export function QuestionForm({ questions, isBusy, isInert, onAnswer, onSkip }: QuestionFormProps) {
  const [chosen, setChosen] = useState<Record<string, string[]>>({});
  const [written, setWritten] = useState<Record<string, string>>({});
  const answerOf = (question: string) => {
    const own = written[question]?.trim() ?? "";
    return [...(chosen[question] ?? []), ...(own === "" ? [] : [own])].join(", ");
  };
  const isComplete = questions.every(({ question }) => answerOf(question) !== "");
  const toggle = ({ question, allowsMany }: AgentQuestion, label: string) => {
    const now = chosen[question] ?? [];
    const without = now.filter((each) => each !== label);
    const next = without.length < now.length ? without : allowsMany ? [...now, label] : [label];
    setChosen({ ...chosen, [question]: next });
  };

  return (
    <form
      className="flex flex-col gap-3 px-3 pb-3"
      onSubmit={(event) => {
        event.preventDefault();
        if (isComplete && !isInert) onAnswer(Object.fromEntries(questions.map(({ question }) => [question, answerOf(question)])));
      }}
    >
      {questions.map((question) => (
        <fieldset key={question.question} className="flex flex-col gap-1.5">
          <legend className="mb-1.5 text-body"><SafeText text={question.question} /></legend>
          {question.options.map((option) => (
            <label key={option.label} className="flex items-start gap-2 rounded-md border border-line bg-bg px-3 py-2 has-checked:border-accent has-checked:bg-accent-tint max-md:py-3">
              <input
                type={question.allowsMany ? "checkbox" : "radio"}
                checked={chosen[question.question]?.includes(option.label) ?? false}
                onChange={() => { toggle(question, option.label); }}
                className="mt-0.5 size-4 accent-(--accent)"
              />
              <span>
                <SafeText text={option.label} />
                {option.description !== "" && <span className="block text-meta text-muted"><SafeText text={option.description} /></span>}
              </span>
            </label>
          ))}
          <input
            aria-label="Another answer"
            placeholder="Another answer"
            value={written[question.question] ?? ""}
            onChange={(event) => { setWritten({ ...written, [question.question]: event.target.value }); }}
            className="h-8 rounded-md border border-edge bg-bg px-2.5 text-control max-md:h-11"
          />
        </fieldset>
      ))}
      <div className="flex gap-2">
        <Button type="submit" tone="primary" isBusy={isBusy} disabled={!isComplete}>Answer</Button>
        <Button disabled={isBusy} aria-disabled={isInert} onClick={onSkip}>Decline to answer</Button>
      </div>
    </form>
  );
}
