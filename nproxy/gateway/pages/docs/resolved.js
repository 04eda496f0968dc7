// "Execute" stays disabled until the operation's references are resolved, some tenths of a second after it is opened:
// Swagger UI shows the button at once, and never sends a request that is made before that.

/** A plugin of Swagger UI. */
export const executedOnceResolved = {
  wrapComponents: {
    execute: (Execute, { React }) =>
      function ExecuteOnceResolved(props) {
        const resolved = props.operation.size > 0; // an empty map until it is resolved
        return React.createElement(Execute, { ...props, disabled: props.disabled || !resolved });
      },
  },
};
