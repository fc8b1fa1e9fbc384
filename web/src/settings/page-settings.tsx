import { useState } from "react";
import { Button } from "@/components/button";
import { Field, Select } from "@/components/field";
import { notificationChoice, turnOffNotifications, turnOnNotifications } from "@/shell/notifications";
import { chooseTheme, useTheme, type ThemeChoice } from "@/shell/theme";

const NOTIFICATION_TEXTS = {
  on: "The browser notifies you when a sandbox needs you and this page is hidden.",
  off: "Notifications are off.",
  blocked: "The browser blocks notifications of this page. Allow them in the browser's settings of this site.",
  unsupported: "This browser has no notifications, or the page was not opened over https or localhost.",
};

export function PageSettings() {
  const { choice } = useTheme();
  const [notifications, setNotifications] = useState(notificationChoice);
  return (
    <div className="flex max-w-md flex-col gap-5">
      <Field label="Colours">
        {(control) => (
          <Select {...control} value={choice} onChange={(event) => { chooseTheme(event.target.value as ThemeChoice); }}>
            <option value="system">As the system</option>
            <option value="light">Light</option>
            <option value="dark">Dark</option>
          </Select>
        )}
      </Field>
      <div>
        <h3 className="text-control font-semibold">Notifications</h3>
        <p className="mt-1 mb-2 text-control text-muted">{NOTIFICATION_TEXTS[notifications]}</p>
        {notifications === "off" && <Button onClick={() => void turnOnNotifications().then(setNotifications)}>Turn on</Button>}
        {notifications === "on" && <Button onClick={() => { turnOffNotifications(); setNotifications(notificationChoice()); }}>Turn off</Button>}
      </div>
    </div>
  );
}
