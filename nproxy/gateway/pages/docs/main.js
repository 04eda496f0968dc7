// The reference: Swagger UI (below swagger-ui/, as it was published) over this gateway's own document.

import { foldedErrors } from "./fold.js";
import { executedOnceResolved } from "./resolved.js";

const PASSED = "Passed through"; // the tag of paths of which little is told, and there are many
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
  tryItOutEnabled: true,
  plugins: [foldedErrors, executedOnceResolved],
  onComplete: () => linked || reference.layoutActions.show(["operations-tag", PASSED], false),
  validatorUrl: null, // nothing is sent to anybody else
});
