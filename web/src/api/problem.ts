/** A failed request: the server's problem document, or a failure to reach the server. */
export class Problem extends Error {
  readonly status: number;
  readonly code: string;

  constructor(status: number, code: string, detail: string) {
    super(detail);
    this.name = "Problem";
    this.status = status;
    this.code = code;
  }
}

interface ProblemDocument {
  code?: unknown;
  detail?: unknown;
  title?: unknown;
}

/** Reads a problem document. Other bodies, such as a proxy's error page, give a general sentence. */
export function problemFromBody(status: number, body: unknown): Problem {
  const document: ProblemDocument = typeof body === "object" && body !== null ? body : {};
  const code = typeof document.code === "string" ? document.code : "unknown";
  const detail = typeof document.detail === "string" ? document.detail : document.title;
  if (typeof detail === "string" && detail !== "") {
    return new Problem(status, code, sentence(detail));
  }
  return new Problem(status, code, `The server answered with status ${status}. Try again, or look at the server's log.`);
}

export function unreachable(): Problem {
  return new Problem(0, "unreachable", "The server does not respond. Check that it runs; the page reconnects by itself.");
}

export async function problemFromResponse(response: Response): Promise<Problem> {
  const body: unknown = await response.json().catch(() => null);
  return problemFromBody(response.status, body);
}

/** The text of a failure for people. */
export function describeFailure(failure: unknown): string {
  if (failure instanceof Problem) return failure.message;
  if (failure instanceof TypeError) return unreachable().message;
  return failure instanceof Error ? sentence(failure.message) : "Something went wrong. Reload the page and try again.";
}

function sentence(text: string): string {
  const capital = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?…`)]$/.test(capital) ? capital : `${capital}.`;
}
