// The API reference: Swagger UI (in swagger-ui/, unmodified) with this gateway's own OpenAPI document.

import { withListedModel } from "./examples.js";
import { foldedErrors } from "./fold.js";
import { executedOnceResolved } from "./resolved.js";
import { hiddenKeys, keepUsable } from "./usable.js";

const PASSED = "Passed through"; // the tag of the many paths that are only passed through and have little documentation
const FOLDED = { type: "layout_show", payload: { thing: ["operations-tag", PASSED], shown: false } }; // without a new address
const DOCUMENT = new URL("openapi.json", document.baseURI).href;
const MODELS = new URL("v1/models", document.baseURI).href;
const dark = matchMedia("(prefers-color-scheme: dark)");

/** Return the theme that was chosen in the playground, if any. */
function chosenTheme() {
  try {
    return localStorage.getItem("nproxy.theme");
  } catch {
    return null; // storage is not allowed
  }
}

function paint() {
  const chosen = chosenTheme();
  document.documentElement.classList.toggle("dark-mode", chosen === "dark" || (chosen !== "light" && dark.matches));
}

dark.addEventListener("change", paint);
addEventListener("storage", paint);
paint();

const linked = [`#/${PASSED}`, `#/${encodeURIComponent(PASSED)}`].some((place) => location.hash.startsWith(place));

keepUsable(document.getElementById("reference"));

const reference = globalThis.SwaggerUIBundle({
  url: DOCUMENT,
  dom_id: "#reference",
  deepLinking: true,
  defaultModelsExpandDepth: 0,
  defaultModelExpandDepth: 2,
  displayRequestDuration: true,
  syntaxHighlight: { theme: "tomorrow-night" }, // the default one's numbers are hard to read
  tryItOutEnabled: true,
  responseInterceptor: async (response) => {
    if (response.url === DOCUMENT && response.ok) response.text = await withListedModel(response.text, MODELS);
    return response;
  },
  plugins: [foldedErrors, executedOnceResolved, hiddenKeys],
  onComplete: () => linked || reference.getStore().dispatch(FOLDED),
  validatorUrl: null, // send nothing to a third party
});
