import { useEffect, useState, type RefObject } from "react";

type VisibilityListener = (isVisible: boolean) => void;
const listeners = new WeakMap<Element, VisibilityListener>();
/** Starts before the element is on the screen, so that its data is there when it is. */
const observer =
  typeof IntersectionObserver === "undefined"
    ? null
    : new IntersectionObserver((entries) => { for (const { target, isIntersecting } of entries) listeners.get(target)?.(isIntersecting); }, { rootMargin: "200px" });

/** The element is on the screen or near it. */
export function useIsVisible(ref: RefObject<Element | null>): boolean {
  const [isVisible, setVisible] = useState(false);
  useEffect(() => {
    const element = ref.current;
    if (element === null) return;
    listeners.set(element, setVisible);
    observer?.observe(element);
    return () => { observer?.unobserve(element); };
  }, [ref]);
  return isVisible;
}
