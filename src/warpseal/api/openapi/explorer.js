"use strict";
SwaggerUIBundle({
  url: "/openapi.json",
  dom_id: "#explorer",
  validatorUrl: null,
  deepLinking: true,
  displayRequestDuration: true,
  defaultModelsExpandDepth: 0,
});
