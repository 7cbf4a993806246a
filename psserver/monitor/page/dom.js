/** Elements, made and changed so that text stays text, and only what differs is touched. */

/** A new element with properties (`className`, `hidden`, ...), attributes (names with "-", and `role`), and children. */
export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.includes("-") || name === "role" || name === "for") made.setAttribute(name, value);
    else made[name] = value;
  }
  made.append(...children);
  return made;
}

/** Sets the text of an element that has nothing else, if it is another one. */
export function setText(node, text) {
  const first = node.firstChild;
  if (first?.nodeType !== Node.TEXT_NODE || first.nextSibling) node.textContent = text;
  else if (first.data !== text) first.data = text;
}

/** Sets an attribute if it is another one; `null` removes it. */
export function setAttribute(node, name, value) {
  if (value === null) {
    if (node.hasAttribute(name)) node.removeAttribute(name);
  } else if (node.getAttribute(name) !== value) node.setAttribute(name, value);
}

/** Shows or hides an element. */
export function setHidden(node, hidden) {
  if (node.hidden !== hidden) node.hidden = hidden;
}

/** The fragment of the address that shows a worker or a variable. */
export function linkTo(kind, name) {
  return `#${kind}=${encodeURIComponent(name)}`;
}

/** Keeps the children of `parent` as the items are: one node a key, in their order, none made twice. */
export class KeyedList {
  /** `make(item)` gives {node, update}: `update(item)` is called for each item at each change. */
  constructor(parent, make) {
    this._parent = parent;
    this._make = make;
    this._entries = new Map();
  }

  /** Shows items, by keys that differ. */
  update(items, keyOf) {
    const keys = new Set(items.map(keyOf));
    for (const [key, { node }] of this._entries) {
      if (!keys.has(key)) {
        node.remove();
        this._entries.delete(key);
      }
    }
    let next = this._parent.firstChild;
    for (const item of items) {
      const key = keyOf(item);
      let entry = this._entries.get(key);
      if (!entry) this._entries.set(key, (entry = this._make(item)));
      if (entry.node === next) next = next.nextSibling;
      else this._parent.insertBefore(entry.node, next);
      entry.update(item);
    }
  }
}
