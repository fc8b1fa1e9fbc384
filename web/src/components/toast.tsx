import { Toast } from "@base-ui/react/toast";
import { CircleCheck, CircleAlert, X } from "lucide-react";
import { describeFailure } from "@/api/problem";

const manager = Toast.createToastManager();

/** Shows the result of an action. */
export function reportSuccess(title: string, description?: string): void {
  manager.add({ title, description, type: "success", timeout: 5_000 });
}

/** Shows why an action failed and what to do. Stays longer. */
export function reportFailure(title: string, failure: unknown): void {
  manager.add({ title, description: describeFailure(failure), type: "failure", priority: "high", timeout: 12_000 });
}

function ToastList() {
  const { toasts } = Toast.useToastManager();
  return toasts.map((toast) => (
    <Toast.Root key={toast.id} toast={toast} className="fade-in mt-2 flex items-start gap-2.5 rounded-lg border border-edge bg-bg px-3 py-2.5 text-control text-text">
      {toast.type === "failure" ? (
        <CircleAlert size={17} className="mt-0.5 shrink-0 text-bad" aria-hidden />
      ) : (
        <CircleCheck size={17} className="mt-0.5 shrink-0 text-ok" aria-hidden />
      )}
      <div className="min-w-0 flex-1 [overflow-wrap:anywhere]">
        <Toast.Title className="font-semibold" />
        <Toast.Description className="text-muted" />
      </div>
      <Toast.Close aria-label="Dismiss" className="rounded p-1 text-muted hover:text-text"><X size={15} aria-hidden /></Toast.Close>
    </Toast.Root>
  ));
}

export function ToastRegion() {
  return (
    <Toast.Provider toastManager={manager}>
      <Toast.Portal>
        <Toast.Viewport className="fixed right-4 bottom-4 z-60 w-[min(24rem,calc(100vw-2rem))] max-md:bottom-[4.5rem]">
          <ToastList />
        </Toast.Viewport>
      </Toast.Portal>
    </Toast.Provider>
  );
}
