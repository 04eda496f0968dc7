// The API reference: Swagger UI (in swagger-ui/, unmodified) with this gateway's own OpenAPI document.

import { foldedErrors } from "./fold.js";
import { executedOnceResolved } from "./resolved.js";

const PASSED = "Passed through"; // the tag of the many paths that are only passed through and have little documentation
const dark = matchMedia("(prefers-color-scheme: dark)");

function paint() {
  document.documentElement.classList.toggle("dark-mode", dark.matches);
}

dark.addEventListener("change", paint);
paint();

const linked = decodeURIComponent(location.hash).startsWith(`#/${PASSED}`);

const reference = globalThis.SwaggerUIBundle({
  url: new URL("openapi.json", document.baseURI).href,
  dom_id: "#reference",
  deepLinking: true,
  defaultModelsExpandDepth: 0,
  defaultModelExpandDepth: 2,
  displayRequestDuration: true,
  syntaxHighlight: { theme: "tomorrow-night" }, // the default one's numbers are hard to read
  tryItOutEnabled: true,
  plugins: [foldedErrors, executedOnceResolved],
  onComplete: () => linked || reference.layoutActions.show(["operations-tag", PASSED], false),
  validatorUrl: null, // send nothing to a third party
});
