import "./styles/app.css";
import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { QueryClientProvider } from "@tanstack/react-query";
import { RouterProvider } from "@tanstack/react-router";
import { queryClient } from "./api/queries";
import { feed } from "./events/feed";
import { router } from "./router";
import { followRows } from "./sandboxes/live-rows";
import { applyTheme } from "./shell/theme";

applyTheme();
followRows();
feed.start();
addEventListener("online", () => {
  feed.retryNow();
});

const root = document.getElementById("root");
if (root !== null) {
  createRoot(root).render(
    <StrictMode>
      <QueryClientProvider client={queryClient}>
        <RouterProvider router={router} />
      </QueryClientProvider>
    </StrictMode>,
  );
}
