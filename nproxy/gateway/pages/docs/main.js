// The reference: Swagger UI (below swagger-ui/, as it was published) over this gateway's own document.

const dark = matchMedia("(prefers-color-scheme: dark)");

function paint() {
  document.documentElement.classList.toggle("dark-mode", dark.matches);
}

dark.addEventListener("change", paint);
paint();

globalThis.SwaggerUIBundle({
  url: new URL("openapi.json", document.baseURI).href,
  dom_id: "#reference",
  deepLinking: true,
  defaultModelsExpandDepth: 0,
  defaultModelExpandDepth: 2,
  displayRequestDuration: true,
  tryItOutEnabled: true,
  validatorUrl: null, // nothing is sent to anybody else
});
