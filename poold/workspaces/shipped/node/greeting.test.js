import assert from "node:assert/strict";
import test from "node:test";

import { greeting } from "./greeting.js";

test("it names whom it greets", () => {
  assert.equal(greeting("you"), "Hello, you.");
});
